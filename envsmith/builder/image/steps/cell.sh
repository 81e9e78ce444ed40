#!/bin/sh
# The steps of a cell's image. The Dockerfile says in which order, and this file is the same for every cell, so that
# equal layers are built once. What is needed only meanwhile lies below /dev, which is in no layer.
set -eu

prefix=/opt/cell user=10001
in=/dev/cell uv=/dev/cell/uv/uv
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export SOURCE_DATE_EPOCH=1735689600 LC_ALL=C.UTF-8

# -- every step --------------------------------------------------------------------------------------------------------

begin() {
    mkdir -p $in
    touch -d '-1 second' $in/started
}

# Give everything that this step wrote one time, but not what the builder mounts: equal files make equal layers.
settle() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /etc/hosts -o -path /etc/hostname \
        -o -path /etc/resolv.conf \) -prune -o -newer $in/started -exec touch -h -d @$SOURCE_DATE_EPOCH {} +
}

trust() {
    if [ -s $in/ca ]; then export SSL_CERT_FILE=$in/ca PIP_CERT=$in/ca REQUESTS_CA_BUNDLE=$in/ca; fi
    if [ -s $in/netrc ]; then export NETRC=$in/netrc; fi
}

# -- Debian's packages -------------------------------------------------------------------------------------------------

# Run apt-get with exact versions: from the live mirror, or from the archive of a day when a version has left it.
# Debian's own images name the archive as a comment above each live address, so that no address stands here.
pinned() {
    day=$1
    case $day in *T*) ;; *) day=$(echo "$day" | tr -d -)T235959Z ;; esac
    shift
    set -- -qq -o APT::Sandbox::User=root "$@"
    etc=/etc/apt
    if [ -d $in/apt ]; then etc=$in/apt; set -- -o Dir::Etc=$etc "$@"; fi
    if [ -s $in/ca ]; then set -- -o Acquire::https::CaInfo=$in/ca "$@"; fi
    apt_once "$@" && return
    echo "the mirror does not have these versions; the archive of $day is asked" >&2
    mkdir -p $in/dated
    date="s|^# *(https?://[^ ]+/)[0-9]{8}T[0-9]{6}Z/?\\nURIs:.*|URIs: \\1$day|"
    for file in $etc/sources.list.d/*.sources; do
        [ -f "$file" ] || continue
        sed -E "\\|^# *https?://[^ ]+/[0-9]{8}T[0-9]{6}Z/?\$|{N;$date}" "$file" > "$in/dated/${file##*/}"
    done
    # An archive's index is past its own date of expiry.
    apt_once -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$in/dated \
        -o Acquire::Check-Valid-Until=false -o APT::Update::Error-Mode=any -o Acquire::http::Timeout=30 "$@"
}

apt_once() {
    command=
    update=
    for word; do
        case $word in download | install) command=$word ;; esac
        [ -n "$command" ] || update="$update $word"
    done
    # shellcheck disable=SC2086 # options without spaces
    apt-get $update update && apt-get "$@"
}

os_packages() {
    begin
    export DEBIAN_FRONTEND=noninteractive
    if [ -e /var/lib/dpkg/triggers/Lock ]; then : > $in/base-has-state; fi
    # shellcheck disable=SC2046 # one word a package
    pinned "$1" install --yes --no-install-recommends $(cat $in/packages.txt)
    # What dpkg writes again with the same content is in the layer of some engines and not of others.
    [ -e $in/base-has-state ] || rm -f /var/lib/dpkg/triggers/Lock /var/cache/debconf/*.dat*
    rm -rf /var/lib/apt/lists/*_* /var/lib/apt/lists/auxfiles /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /tmp/*
    # The keys of a ssh server are each container's own, and never an image's.
    rm -f /etc/ssh/ssh_host_*
    # Emptied, not removed: removing a file of the base leaves a mark that carries today's time.
    find /var/log /var/cache/ldconfig -type f -newer $in/started -exec truncate --size 0 {} +
    settle
}

# -- Python's packages -------------------------------------------------------------------------------------------------

# Install uv by version and hash, in a stage that is in no image. pip asks the index that uv.toml names first.
get_uv() {
    begin
    trust
    "$1" -m venv /tmp/uv
    if [ -s $in/uv.toml ]; then
        PIP_INDEX_URL=$(/tmp/uv/bin/python $in/steps/default_index.py $in/uv.toml) && export PIP_INDEX_URL
        [ -n "$PIP_INDEX_URL" ] || unset PIP_INDEX_URL
    fi
    /tmp/uv/bin/python -m pip --quiet --no-cache-dir --disable-pip-version-check install --require-hashes --no-deps \
        --only-binary :all: --requirement $in/requirements.txt
    mkdir /uv
    mv /tmp/uv/bin/uv /uv/uv
}

# Written by hand: useradd would leave today's date in /etc/shadow.
add_user() {
    ! grep -q ":x:$user:" /etc/passwd
    echo "cell:x:$user:$user::/home/cell:/bin/sh" >> /etc/passwd
    echo "cell:x:$user:" >> /etc/group
    mkdir -p /home/cell
    chown $user:$user /home/cell
    # HOME of whoever runs it (docker run --user 4711, OpenShift).
    chmod 1777 /home/cell
}

# Add the user and an empty environment: environment PYTHON.
environment() {
    begin
    add_user
    $uv --no-config --cache-dir $in/cache venv --quiet --no-python-downloads --python "$1" $prefix
    # Which uv made the environment is nothing of the cell: another one would give another layer.
    sed -i '/^uv = /d' $prefix/pyvenv.cfg
    settle
}

with_uv() {
    trust
    export VIRTUAL_ENV=$prefix UV_CACHE_DIR="$1" UV_LINK_MODE=hardlink UV_NO_INSTALLER_METADATA=1
    export UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1 PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
    if [ -s $in/uv.toml ]; then export UV_CONFIG_FILE=$in/uv.toml; else export UV_NO_CONFIG=1; fi
}

hashed() {
    $uv pip install --require-hashes --no-deps --requirements $in/requirements.txt "$@"
}

# Install wheels. The cache lies on the environment's own file system, so that files are linked, and goes in this step.
install() {
    begin
    with_uv $prefix/.uv-cache
    hashed --only-binary :all: "$@"
    rm -rf $prefix/.uv-cache $prefix/.lock /tmp/* ~/.cache
    settle
}

# Code of a source distribution runs as the image's user and reads no secret (sitecustomize.py beside this file).
as_build_user() {
    export PYTHONPATH=$in/steps CELL_USER=$user
}

built_by_user() {
    test -z "$(find "$@" -name '*.whl' ! -user $user)"
}

# Without the last option uv would fetch a build tool that is not pinned.
hashed_and_built() {
    hashed --build-constraints $in/build.txt --require-build-hashes --preview-features build-dependency-hashes "$@"
}

install_and_build() {
    begin
    with_uv $prefix/.uv-cache
    as_build_user
    hashed_and_built "$@"
    built_by_user $prefix/.uv-cache/sdists-v*
    rm -rf $prefix/.uv-cache $prefix/.lock /tmp/* ~/.cache
    settle
}

# Take wheels of source distributions from uv's cache, the only place where a hashed requirement leaves one.
build_wheels() {
    begin
    with_uv $in/cache
    as_build_user
    hashed_and_built "$@"
    built_by_user $in/cache/sdists-v*
    mkdir /wheels
    find $in/cache/sdists-v* -name '*.whl' -exec cp --preserve=ownership {} /wheels \;
}

# Compile what is installed. It is believed unchecked, as no file of a layer changes. One process: the bytes of a file
# depend on what the same process compiled before.
bytecode() {
    begin
    PYTHONHASHSEED=0 $prefix/bin/python -m compileall -qq -j 1 --invalidation-mode unchecked-hash $prefix/lib || true
    settle
}

# -- compiled against torch --------------------------------------------------------------------------------------------

# Add what the sources are built with to the environment of this stage.
build_environment() {
    begin
    with_uv $prefix/.uv-cache
    hashed --only-binary :all: "$@"
    if ls $prefix/lib/python*/site-packages/nvidia/*/bin/nvcc > /dev/null 2>&1; then cuda_home; fi
    mkdir -p /wheels
    rm -rf $prefix/.uv-cache
}

# Link CUDA_HOME as build systems expect it: wheels lack lib64 and names such as libcudart.so.
cuda_home() {
    set -- $prefix/lib/python*/site-packages/nvidia/*/bin/nvcc
    test -x "$1"
    home=${1%/bin/nvcc}
    ln -s "$home" $prefix/cuda
    ln -s lib "$home/lib64"
    for so in "$home"/lib/lib*.so.*; do
        link=${so%%.so.*}.so
        [ -e "$link" ] || ln -s "${so##*/}" "$link"
    done
}

toolkit() {
    begin
    cuda_home
    settle
}

# Compile one wheel: compile NAME SHA256 [cuda]. What runs here was written by others, and nothing of the host is mounted.
# Folders are fixed, because compilers write them into what they make. /dev has 64 MB, so the cache is not there.
compile() {
    name=$1 sha256=$2
    begin
    with_uv $prefix/.uv-cache
    export PATH="$prefix/bin:$PATH"
    if [ "${3:-}" = cuda ]; then
        # Else nvcc names its intermediate files after its process id, and these names stand in what it makes.
        export CUDA_HOME=$prefix/cuda PATH="$prefix/cuda/bin:$PATH" NVCC_APPEND_FLAGS=-objtemp
    fi
    if [ -s $in/jobs ]; then MAX_JOBS=$(cat $in/jobs) && export MAX_JOBS; fi
    test "$(sha256sum < $in/source.tar.gz)" = "$sha256  -"
    as_build_user
    mkdir -p "/build/$name"
    tar -xzf $in/source.tar.gz -C "/build/$name" --strip-components 1 --no-same-owner
    $uv build --wheel --no-build-isolation --offline --python $prefix/bin/python --out-dir /wheels "/build/$name"
    built_by_user /wheels
    rm -rf /build $prefix/.uv-cache
}

# -- the Conda image ---------------------------------------------------------------------------------------------------

# Install the packages of an explicit list, each held against its sha256: such a list knows only MD5. They are copied,
# because the cache is another file system and does not stay.
conda() {
    export HOME=/tmp MAMBA_ROOT_PREFIX=$in/conda PYTHONDONTWRITEBYTECODE=1
    begin
    trust
    $in/micromamba create --yes --quiet --no-rc --always-copy --prefix $prefix --file $in/explicit.lock
    cd $in/conda/pkgs
    sha256sum --check --strict --quiet $in/packages.sha256
    rm -rf /tmp/* /tmp/.[!.]*
}

# Install what no channel has, named by address and sha256.
conda_pip() {
    export HOME=/tmp DS_BUILD_OPS=0 BUILD_EXT=0
    begin
    with_uv $in/cache
    export UV_LINK_MODE=copy
    hashed --python $prefix/bin/python "$@"
    rm -rf /tmp/* /tmp/.[!.]* $prefix/.lock
}

case ${0##*/} in cell.sh) "$@" ;; esac
