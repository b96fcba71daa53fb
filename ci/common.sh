# What the scripts of this folder share. Sourced by them; sets `root`, the repository's folder.
# shellcheck shell=bash disable=SC2034

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# Headers are most of what compiling costs, so sources are compiled several to a unit.
unity=(-DCMAKE_UNITY_BUILD=ON)
# Only what simulated worlds need.
simulated=(-DTPSYNC_CUDA=OFF -DTPSYNC_NCCL=OFF -DTPSYNC_GLOO=OFF)

say() { printf '%s\n' "-- $*"; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}
usage_error() {
  printf '%s: %s (--help lists the options)\n' "$(basename "$0")" "$*" >&2
  exit 64
}

# The comment at the head of the calling script is its help text.
print_help() { sed -n '2,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$0"; }

# Prints the step and how long it took when it ends.
timed() {
  local what="$1" start=$SECONDS
  shift
  "$@" || return  # said by whoever was called; `set -e` is off where the caller asks for the status
  say "$what: $((SECONDS - start)) s"
}
