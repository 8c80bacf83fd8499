# Shared by scripts/serve and scripts/test: packages, build, the default model. Sourced, not run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build_packages=(ca-certificates cmake g++ ninja-build pkg-config python3 python3-pip
  libboost-dev libcli11-dev libfmt-dev libpcre2-dev libspdlog-dev libutf8proc-dev libxxhash-dev libyaml-cpp-dev
  nlohmann-json3-dev prometheus-cpp-dev)
test_packages=(libgtest-dev libgmock-dev python3-venv curl wrk)
# Formatting, static analysis and libFuzzer come from clang 19: Debian's clang 14 does not see std::expected.
# The browser (190 MB to fetch, 80 s to install on two busy cores) is for the tests of the page, which skip without it.
check_packages=(chromium chromium-driver git clang-19 clang-format-19 clang-tidy-19 libclang-rt-19-dev)

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }

# Installs those of the given Debian packages that are missing; without root prints the line to run and exits 2.
install_packages() {
  local missing=() package
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) == 'install ok installed' ]] || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if [[ $(id -u) != 0 ]]; then
    echo "attest needs ${#missing[@]} Debian package(s). Run this, then try again:" >&2
    echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 2
  fi
  say "installing ${#missing[@]} package(s): ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# configure PRESET [CMAKE_ARGUMENT...]
configure() {
  say "configuring build/$1"
  cmake --preset "$@" >/dev/null
}

# build PRESET TARGET...: configures where that was not done, then builds; Ninja shows the progress.
build() {
  local preset=$1
  shift
  [[ -f build/$preset/build.ninja ]] || configure "$preset"
  cmake --build --preset "$preset" --target "$@" >&2
}
