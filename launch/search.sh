#!/usr/bin/env bash
# Searches a folder of videos: `bash launch/search.sh FOLDER [flags]` indexes it and opens the page;
# `bash launch/search.sh --demo` does so with videos and an encoder that it makes itself. The first
# run installs what it needs into .venv (launch/environment.sh); a later one looks for what is new
# in the folder. Paths are relative to where you are.
#
# `bash launch/search.sh COMMAND …` runs a command of the search alone: query, index, serve, status,
# add, remove, tag, watch, transcribe, prune, verify, cut, mcp, evaluate, features, upload, demo;
# `COMMAND --help` says what it takes. (A folder of such a name is written ./query.)
#
# --index=DIR holds the index; FOLDER/.hlformer-search without it, and of the demo runs/search-demo.
# --port, --host, --allow-host, --token-file, --no-token, --manage, --no-manage, --ranker and --normalise go
# to the page, --encoder, --fps, --checkpoint, --workers, --timeout and --retry to the indexing: `index --help`
# and `serve --help` say what they mean.

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
    --encoder=* | --fps=* | --checkpoint=* | --workers=* | --timeout=* | --retry) indexing+=("$flag") ;;
    -*) die "unknown flag $flag (flags are written --name=value); $usage" ;;
    *)
      [[ -z $folder ]] || die "one folder, not $folder and $flag: quote a name with spaces; $usage"
      folder=$flag
      ;;
  esac
done
if [[ -n $demo ]]; then
  [[ -z $folder && ${#indexing[@]} -eq 0 ]] || die "--demo makes its own videos; $usage"
else
  [[ -n $folder ]] || die "$usage"
  [[ -d $folder ]] || die "$folder is no folder: give the folder of the videos"
fi

environment search

# -P: the working directory is no place to import from.
search=("$root/.venv/bin/python" -P -m hlformer_jax.search)
if [[ -n $demo ]]; then
  out=${index:-runs/search-demo}
  "${search[@]}" demo --out="$out"
  index=$out/index
else
  index=${index:-$folder/.hlformer-search}
  "${search[@]}" index --index="$index" ${indexing[@]+"${indexing[@]}"} -- "$folder"
fi
# Signals reach Python.
exec "${search[@]}" serve --index="$index" --open ${serving[@]+"${serving[@]}"}
