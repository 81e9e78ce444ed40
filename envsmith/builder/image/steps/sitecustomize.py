"""Become the image's user before code of a source distribution runs.

Python imports this before anything else. uv starts it as root, because uv alone may read the login of the index. Where
it is to run a build, in the folder of a source, it hands that folder to the user and becomes that user. A folder that
uv reads again stays root's, with the sticky bit: the user may add files and replace none.
"""

# ruff: noqa: PTH101, PTH109, PTH116, PTH118, PTH207, S103, S108, BLE001
import glob
import os
import stat


def _become(user: int) -> None:
    if os.stat(".").st_uid == 0:
        for top, folders, files in os.walk(os.getcwd()):
            for name in [".", *folders, *files]:
                os.lchown(os.path.join(top, name), user, user)
    builds = os.environ["UV_CACHE_DIR"] + "/builds-v*/.tmp*"
    for path in [*glob.glob(builds), *glob.glob(builds + "/metadata_directory"), "/wheels"]:
        state = os.lstat(path) if os.path.lexists(path) else None
        if state and state.st_uid == 0 and stat.S_ISDIR(state.st_mode):
            os.chmod(path, 0o1777)
    os.environ["HOME"] = "/tmp"
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


try:
    _folder = os.getcwd()
    if "CELL_USER" in os.environ and os.getuid() == 0 and ("/sdists-v" in _folder or _folder.startswith("/build/")):
        _become(int(os.environ["CELL_USER"]))
except BaseException as error:
    os.write(2, f"the build cannot run as an ordinary user: {error!r}".encode())
    os._exit(70)
