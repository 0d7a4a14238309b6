"""The command that makes a demo archive: demo."""

from hlformer_jax import terminal
from hlformer_jax.cli import command_line
from hlformer_jax.lazy import optional
from hlformer_jax.search.cli import console
from hlformer_jax.search.cli.options import Options, command, flag, option, path, seed


@command(
    path(
        "--out",
        "directory for the videos, captions, encoder and index of the demo",
        required=True,
        metavar="DIR",
    ),
    option("--seed", "seed of the videos (default: 0)", type=seed, default=0),
    flag("--training", "also render captioned videos to train a model on, in DIR/training"),
    compiles=True,
    continues=True,
)
def demo(options: Options) -> None:
    """Make a demo archive to search in, without own videos or downloads."""
    console.check_place(options.out, "--out")
    demo = optional("hlformer_jax.search.demo", "search")
    demo.make(options.out, options.seed, terminal.report)
    if options.training:
        demo.render_training(options.out, options.seed, terminal.report)
    index = f"--index={options.out / 'index'}"
    terminal.show(f"search it: {command_line('search', 'query', 'a red circle', index)}")
