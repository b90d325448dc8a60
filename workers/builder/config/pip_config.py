"""The `pip_config_file` key of a langgraph.json: the package indexes."""

from __future__ import annotations

import configparser
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from workers.builder.config.fields import refused
from workers.builder.source_tree import SourceTree


@dataclass(frozen=True)
class PipConfig:
    """The package sources named by a pip configuration file."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()  # find-links inside the project, relative to the archive's root

    def within(self, project: Path) -> PipConfig:
        """Return a copy whose `directories` are absolute `find_links`, below the project's current location."""
        links = tuple(str(project / path) for path in self.directories)
        return replace(self, find_links=(*self.find_links, *links), directories=())


def read(tree: SourceTree, path: str | None) -> PipConfig | None:
    """Return the configuration in the file at this path, None without a path. Raises BuildFailed, naming the key."""
    if path is None:
        return None
    raw = tree.content(tree.inside(path, "pip_config_file:"), f"pip_config_file: {path!r}")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(raw.decode())
    except (UnicodeDecodeError, configparser.Error) as error:
        raise refused(f"pip_config_file: {path!r} is not a pip configuration file") from error
    options: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            options.update(parser.items(section))
    urls = " ".join(options.get(key, "") for key in ("index-url", "extra-index-url", "find-links")).split()
    if any(urlsplit(url).username for url in urls):
        raise refused("pip_config_file: a URL must not hold a user name or password")
    links = options.get("find-links", "").split()
    local = [link for link in links if "://" not in link]
    inside = [tree.inside(link, "pip_config_file: find-links:") for link in local]
    return PipConfig(
        options.get("index-url"),
        tuple(options.get("extra-index-url", "").split()),
        tuple(link for link in links if link not in local),
        tuple(map(str, inside)),
    )
