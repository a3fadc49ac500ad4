"""Known security advisories of what is installed: `python benchmarks/advisories.py`.

Asks PyPI for every package of this environment. PyPI names the advisories of a package's newest version; of an older
one it says here only that a newer one exists. `pip-audit` asks about the installed versions themselves, where its
services can be reached. Ends with 1 if there is an advisory.
"""

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions

from packaging.version import Version


def ask_pypi(name: str) -> tuple[str, list[str]] | None:
    """The newest version of a package, and the ids of its advisories; None if PyPI does not know the package."""
    try:
        with urllib.request.urlopen(f"https://pypi.org/pypi/{name}/json", timeout=60) as reply:
            found = json.load(reply)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
    return found["info"]["version"], [one["id"] for one in found["vulnerabilities"]]


def main() -> None:
    installed = {one.metadata["Name"]: one.version for one in distributions() if one.metadata["Name"] != "vlprune"}
    with ThreadPoolExecutor(8) as pool:
        answers = dict(zip(installed, pool.map(ask_pypi, installed)))
    unknown = sorted(name for name, answer in answers.items() if answer is None)
    known = {name: answer for name, answer in answers.items() if answer is not None}
    older = [
        f"{name} {installed[name]} (newest {newest})"
        for name, (newest, _) in sorted(known.items())
        if Version(Version(installed[name]).public) < Version(newest)
    ]
    found = [f"{name} {newest}: {', '.join(ids)}" for name, (newest, ids) in sorted(known.items()) if ids]
    print(f"{len(installed)} packages, {len(known) - len(older)} of the newest version")
    print(f"older: {', '.join(older) or 'none'}")
    print(f"not on PyPI: {', '.join(unknown) or 'none'}")
    print(f"advisories: {'; '.join(found) or 'none'}")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
