"""The command that makes an archive to try the search on."""

from hlformer_jax.cli import command_line
from hlformer_jax.lazy import optional
from hlformer_jax.search.cli import console
from hlformer_jax.search.cli.options import Options, command, flag, option, path


@command(
    path("--out", "gets videos, captions, encoder, index, kinds", required=True, metavar="DIR"),
    option("--seed", "equal seeds make equal videos", type=int, default=0),
    flag("--training", "also render captioned videos to train on, in DIR/training"),
    compiles=True,
)
def demo(options: Options) -> None:
    """Make an archive to try the search on, without any video or download."""
    console.check_place(options.out, "--out")
    demo = optional("hlformer_jax.search.demo", "search")
    demo.make(options.out, options.seed, console.say)
    demo.make_kinds(options.out, options.seed, console.say)
    if options.training:
        demo.render_training(options.out, options.seed, console.say)
    index = f"--index={options.out / 'index'}"
    print(f"ask it: {command_line('search', 'query', 'a red circle', index)}")
