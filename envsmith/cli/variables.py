"""Every environment variable that the program reads for itself: a test holds the table to the code.

Left out are those that are only looked at to judge a machine (``doctor``) or handed on to a program that reads them
(uv, pip, torch).
"""

from __future__ import annotations

# Name -> what it does here.
VARIABLES: dict[str, str] = {
    "CI": "Set: plain lines instead of a live display.",
    "CONDARC": "Another `.condarc` for channels, mirrors, proxies.",
    "CONDA_CHANNELS": "Channels, as conda reads it.",
    "CONDA_CHANNEL_ALIAS": "Base address of named channels, as conda reads it.",
    "CONDA_PREFIX": "Where conda's own configuration may lie.",
    "CONDA_ROOT": "Where conda's own configuration may lie.",
    "CONDA_SSL_VERIFY": "CA bundle, or false, as conda reads it.",
    "CONTAINER_HOST": "Address of podman's service.",
    "DOCKER_CONFIG": "Folder of Docker's `config.json` (credentials of registries).",
    "ENVSMITH_BUILD_NETWORK": "Network of build steps (`host`, `none`, a name); default: the engine's.",
    "ENVSMITH_CELL": "Given to the smoke command of `ci run`: the id of the cell.",
    "ENVSMITH_DOCKER": "The docker client to use.",
    "ENVSMITH_ID": "Given to GitLab jobs by `ci matrix --format gitlab`: the id of the cell.",
    "ENVSMITH_KEY_PASSWORD": "Password of the key file that `publish` signs with.",
    "ENVSMITH_MACHINE": "What `--machine` says where it is not given: `none`, or the snapshot of another machine.",
    "ENVSMITH_MATRIX": "Another folder of knowledge instead of the packaged one.",
    "ENVSMITH_TOOL": "The image that unpacks a base made from packages, where no registry can be reached.",
    "ENVSMITH_VERB_FLAG": "Any flag, by verb and name: `ENVSMITH_BUILD_ENGINE`, `ENVSMITH_MATRIX_LIST_FRAMEWORK`.",
    "FORCE_COLOR": "Set: colours without a terminal, too.",
    "HOME": "Where the user's configuration and cache lie.",
    "LOGNAME": "The user's name, which is taken out of records and snapshots.",
    "MAX_JOBS": "Compilations at once, where a source is compiled; default: by processors and memory.",
    "NETRC": "Another `.netrc` for logins of indexes and Conda channels.",
    "NO_COLOR": "Set: no colours.",
    "PATH": "Where interpreters, engines and uv are looked for.",
    "PIP_CONFIG_FILE": "Another configuration of pip: index, CA, proxy.",
    "PYENV_ROOT": "Where pyenv keeps interpreters.",
    "RATTLER_AUTH_FILE": "Credentials of Conda channels, as rattler reads them.",
    "REGISTRY_AUTH_FILE": "Logins of registries, as podman and skopeo keep them.",
    "SIGSTORE_ID_TOKEN": "Identity token for keyless signing.",
    "SOURCE_DATE_EPOCH": "The time (seconds since 1970) that goes into locks and images.",
    "TERM": "`dumb`: plain lines instead of a live display.",
    "UV_PYTHON_INSTALL_DIR": "Where uv keeps interpreters.",
    "USER": "As `LOGNAME`.",
    "XDG_CACHE_HOME": "Where the compiled knowledge and the Conda cache lie (`envsmith/` below it).",
    "XDG_CONFIG_DIRS": "Where pip's and rattler's configuration is looked for.",
    "XDG_CONFIG_HOME": "Where pip's, uv's and rattler's configuration is looked for.",
    "XDG_DATA_HOME": "Where uv keeps interpreters, unless UV_PYTHON_INSTALL_DIR is set.",
}
