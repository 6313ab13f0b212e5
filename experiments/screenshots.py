"""Pictures of pages of HTML in a browser without a window: a wide screen, and a telephone in the other mode.

    nadaraya demo --out demo
    python experiments/screenshots.py demo/report.html docs/figures/report-page.webp
    text='The value of the default argument is evaluated once,\\nwhen the function is defined. This is '
    text+='important when\\nthe default is a mutable object such as a list:\\n   >>> def f(a, L=[]):\\n'
    printf "$text" > text.txt
    nadaraya maps demo/gpa-spread --text text.txt --out demo/maps
    python experiments/screenshots.py demo/maps/index.html docs/figures/maps-page.webp --dark --height 1500

It needs Chromium. The telephone's page goes on in a second column beside the first.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

WIDE, TELEPHONE, GAP = 1200, 420, 24


def shot(page: Path, width: int, height: int, dark: bool, browser: str) -> Image.Image:
    """The top of a page at a width in CSS pixels, light or dark."""
    with tempfile.TemporaryDirectory() as folder:
        # Chromium has no narrow windows: a frame gives a page the width of a telephone.
        frame = Path(folder) / "frame.html"
        size = f"width:{width}px;height:{height}px;border:0;display:block"
        frame.write_text(f'<body style="margin:0"><iframe src="{page.resolve().as_uri()}" style="{size}">')
        picture = Path(folder) / "page.png"
        command = [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={folder}/profile", f"--window-size={max(width, 600)},{height}"),
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            *(f"--screenshot={picture}", frame.as_uri()),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        with Image.open(picture) as opened:
            return opened.convert("RGB").crop((0, 0, width, height))


def side_by_side(page: Path, height: int, dark: bool, browser: str) -> Image.Image:
    """The page on a wide screen, and on a telephone in two columns in the other mode."""
    wide = shot(page, WIDE, height, dark, browser)
    narrow = shot(page, TELEPHONE, 2 * height, not dark, browser)
    sheet = Image.new("RGB", (WIDE + 2 * (TELEPHONE + GAP), height), "#808080")
    sheet.paste(wide, (0, 0))
    for column in range(2):
        part = narrow.crop((0, column * height, TELEPHONE, (column + 1) * height))
        sheet.paste(part, (WIDE + GAP + column * (TELEPHONE + GAP), 0))
    return sheet.resize((sheet.width * 2 // 3, sheet.height * 2 // 3), Image.Resampling.LANCZOS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dark", action="store_true", help="the wide screen is the dark one")
    parser.add_argument("--height", type=int, default=3200, help="pixels of the page that are shown")
    parser.add_argument("--browser", default="chromium")
    given = parser.parse_args()
    side_by_side(given.page, given.height, given.dark, given.browser).save(given.out, quality=80, method=6)


if __name__ == "__main__":
    main()
