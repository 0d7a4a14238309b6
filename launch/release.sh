#!/usr/bin/env bash
# Publishes the version in hlformer_jax/__init__.py: `bash launch/release.sh`. The branch must be main,
# equal to main at origin. The script writes today's date into CHANGELOG.md, commits, tags, and pushes
# commit and tag. .github/workflows/release.yml then builds, checks and publishes. --dry-run stops
# before the push.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"

push=yes
case ${1-} in
  "") ;;
  --dry-run) push="" ;;
  *) die "unknown flag $1; usage: bash launch/release.sh [--dry-run]" ;;
esac

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' hlformer_jax/__init__.py)
heading="## [$version] - unreleased"
[[ $(git branch --show-current) == main ]] || die "a release is made on the branch main"
[[ -z $(git status --porcelain) ]] || die "there are changes that are not committed"
git fetch --quiet --tags origin main
[[ $(git rev-parse HEAD) == $(git rev-parse FETCH_HEAD) ]] || die "main differs from main at origin: push or pull"
! git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null ||
  die "v$version is released: give hlformer_jax/__init__.py and CHANGELOG.md the next version"
grep -qxF "$heading" CHANGELOG.md || die "CHANGELOG.md has no heading \"$heading\""

dated=$(awk -v old="$heading" -v new="## [$version] - $(date -u +%F)" '$0 == old { $0 = new } { print }' CHANGELOG.md)
printf '%s\n' "$dated" >CHANGELOG.md
git commit --quiet --message "Release $version" CHANGELOG.md
git tag --annotate "v$version" --message "$version"
if [[ -z $push ]]; then
  say "v$version is committed and tagged here; git push --atomic origin main v$version publishes it"
  exit
fi
git push --quiet --atomic origin main "v$version"
say "v$version is pushed; the workflow \"release\" publishes it"
