#!/usr/bin/env bash
# Search a folder of videos: `bash launch/search.sh FOLDER [flags]` indexes it and opens the page.
# `bash launch/search.sh --demo` does the same with demo videos. The first run installs the package
# into .venv (launch/environment.sh); later runs index new videos. Paths are relative to the current
# directory.
#
# `bash launch/search.sh COMMAND …` runs one command: query, index, serve, status, add, remove, tag,
# watch, transcribe, prune, verify, cut, mcp, evaluate, features, upload, demo. `COMMAND --help` lists
# its options. (Write ./query for a folder with such a name.)
#
# --index=DIR is the directory of the index (default: FOLDER/.hlformer-search). With --demo it is the
# directory of the demo (default: runs/search-demo), whose index is DIR/index.
# --port, --host, --allow-host, --token-file, --no-token, --manage, --no-manage, --ranker and
# --normalise are flags of serve; --encoder, --fps, --every-frame, --precision, --checkpoint, --workers,
# --timeout, --retry and --ray are flags of index.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

usage="usage: bash launch/search.sh FOLDER [--index=DIR] [--port=N] [flags], or --demo, or a command"
case ${1-} in
  query | index | serve | status | add | remove | tag | watch | transcribe | prune | verify | cut | mcp \
    | evaluate | features | upload | demo)
    environment search
    exec "$root/.venv/bin/python" -P -m hlformer_jax.search "$@"
    ;;
esac
folder="" index="" demo="" indexing=() serving=()
for flag in "$@"; do
  case $flag in
    --demo) demo=yes ;;
    -h | --help) exec "$BASH" "${BASH_SOURCE[0]}" --help ;;
    --index=*) index=${flag#--index=} ;;
    --port=* | --host=* | --allow-host=* | --token-file=* | --no-token | --manage | --no-manage | --ranker=* | --normalise) serving+=("$flag") ;;
    --encoder=* | --fps=* | --checkpoint=* | --workers=* | --timeout=* | --retry \
      | --precision=* | --every-frame | --ray=*) indexing+=("$flag") ;;
    -*) die "unknown flag $flag (flags are written --name=value); $usage" ;;
    *)
      [[ -z $folder ]] || die "two folders, $folder and $flag: quote names with spaces; $usage"
      folder=$flag
      ;;
  esac
done
if [[ -n $demo ]]; then
  [[ -z $folder && ${#indexing[@]} -eq 0 ]] || die "--demo takes no folder and no flags of index; $usage"
else
  [[ -n $folder ]] || die "$usage"
  [[ -d $folder ]] || die "$folder is not a folder: give the folder of the videos"
fi

environment search

# -P: do not import from the working directory.
search=("$root/.venv/bin/python" -P -m hlformer_jax.search)
if [[ -n $demo ]]; then
  out=${index:-runs/search-demo}
  "${search[@]}" demo --out="$out"
  index=$out/index
else
  index=${index:-$folder/.hlformer-search}
  "${search[@]}" index --index="$index" ${indexing[@]+"${indexing[@]}"} -- "$folder"
fi
# exec, so that signals reach Python.
exec "${search[@]}" serve --index="$index" --open ${serving[@]+"${serving[@]}"}
