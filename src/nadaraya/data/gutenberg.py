"""The works of Charles Dickens from Project Gutenberg: fetched politely, stripped, checked, cached."""

import io
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from nadaraya import __version__
from nadaraya.data.cache import read_manifest, store, stored_text
from nadaraya.data.textfile import PART_SEPARATOR, decode_text, files_below, read_text
from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.files import cache_folder

# Ebook number and title; novels by year, then the other works by year.
DICKENS = {
    580: "The Pickwick Papers",
    730: "Oliver Twist",
    967: "Nicholas Nickleby",
    700: "The Old Curiosity Shop",
    917: "Barnaby Rudge",
    968: "Martin Chuzzlewit",
    821: "Dombey and Son",
    766: "David Copperfield",
    1023: "Bleak House",
    786: "Hard Times",
    963: "Little Dorrit",
    98: "A Tale of Two Cities",
    1400: "Great Expectations",
    883: "Our Mutual Friend",
    564: "The Mystery of Edwin Drood",
    882: "Sketches by Boz",
    588: "Master Humphrey's Clock",
    675: "American Notes",
    46: "A Christmas Carol",
    653: "The Chimes",
    678: "The Cricket on the Hearth",
    644: "The Haunted Man and the Ghost's Bargain",
    699: "A Child's History of England",
    872: "Reprinted Pieces",
    914: "The Uncommercial Traveller",
}

# Project Gutenberg asks programs to use its mirror; the site itself comes second.
MIRRORS = ("https://gutenberg.pglaf.org/cache/epub", "https://www.gutenberg.org/cache/epub")
PAUSE_SECONDS = 2.0
CORPUS_FILE = "dickens.txt"
AGAIN = "run `nadaraya data dickens`, or `nadaraya data dickens --from FOLDER` with files already there"

_ROUNDS = 2  # how often each mirror is asked for a book
_HEADERS = {
    "User-Agent": f"nadaraya/{__version__} (text corpus download, one request at a time)",
    "Accept-Encoding": "identity",  # so that the announced length is that of the text
}

_START = re.compile(
    r"^[ \t]*\*{3}[ \t]*START OF (?:THE|THIS) PROJECT GUTENBERG E-?(?:BOOK|TEXT)[^*]{0,400}\*{3}[ \t]*$"
    r"|^[ \t]*\*END\*[ \t]*THE SMALL PRINT!.*\*END\*[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_END = re.compile(
    r"^[ \t]*\*{3}[ \t]*END OF (?:THE|THIS) PROJECT GUTENBERG E-?(?:BOOK|TEXT)"
    r"|^[ \t]*End of (?:the |this )?Project Gutenberg",
    re.IGNORECASE | re.MULTILINE,
)
_CREDITS = re.compile(
    r"\A(?:Produced by|E-?text prepared by|Transcribed (?:from|by))(?:.+\n)+\n*", re.IGNORECASE
)


def strip_boilerplate(text: str, name: str) -> str:
    """The book between Project Gutenberg's header and footer, without the lines that credit transcribers."""
    start = _START.search(text)
    if start is None:
        raise InputError(
            f"{name} has no Project Gutenberg header (*** START OF ...): not one of its plain texts"
        )
    end = _END.search(text, start.end())
    if end is None:
        raise InputError(f"{name} has no Project Gutenberg footer (*** END OF ...): is it cut short?")
    body = _CREDITS.sub("", text[start.end() : end.start()].strip() + "\n").strip("\n")
    if not body.strip():
        raise InputError(f"{name} has nothing between Project Gutenberg's header and footer")
    return body + "\n"


def fetch_dickens(
    cache: Path | None = None,
    *,
    source_folder: Path | None = None,
    books: Iterable[int] | None = None,
    progress: bool = False,
    mirrors: Sequence[str] = MIRRORS,
    pause: float = PAUSE_SECONDS,
) -> Path:
    """Bring the works of Charles Dickens into the cache and join them into one corpus.

    Books already there and intact are not fetched again, so an interrupted call is simply repeated.

    Args:
        cache: cache folder, default `cache_folder()`.
        source_folder: take the files from here, not from the network: plain texts whose names carry the
            ebook number (580.txt, 580-0.txt, pg580.txt), or one prepared dickens.txt, taken whole when no
            `books` are named.
        books: ebook numbers, default all 25 works; the corpus holds these, in the table's order.
        progress: whether to show a bar for each download on standard error, default no.
        mirrors: base addresses, tried in turn; a book is at BASE/580/pg580.txt.
        pause: seconds between two requests, default 2.

    Returns:
        The corpus file, dickens.txt.

    Raises:
        InputError: for an unknown ebook number, a file that is missing or is no Gutenberg text, or when the
            network cannot be reached or the cache cannot be written.

    >>> from pathlib import Path
    >>> from nadaraya.data import fetch_dickens
    >>> _ = Path("dickens.txt").write_text("It was the best of times.")
    >>> fetch_dickens(Path("cache"), source_folder=Path(".")).name
    'dickens.txt'
    """
    folder = (cache or cache_folder()) / "dickens"
    wanted = set(DICKENS if books is None else books)
    for ebook in sorted(wanted.difference(DICKENS)):
        raise unknown_name("ebook", str(ebook), map(str, DICKENS))
    if not wanted:
        raise must_be("books", "ebook numbers such as 580,730", [])
    chosen = [ebook for ebook in DICKENS if ebook in wanted]
    if source_folder is None:
        missing = [ebook for ebook in chosen if stored_text(folder, f"{ebook}.txt") is None]
        found = _downloaded(missing, progress, mirrors, pause)
    elif not source_folder.is_dir():
        raise InputError(f"no such folder: {source_folder}")
    elif books is None and (source_folder / CORPUS_FILE).is_file():
        text = read_text(source_folder / CORPUS_FILE)
        store(folder, CORPUS_FILE, text, title="the corpus, taken whole", books=())
        return folder / CORPUS_FILE
    else:
        paths = _find_books(source_folder, chosen)
        found = ((ebook, path.name, read_text(path)) for ebook, path in paths.items())
    for ebook, source, text in found:
        book = strip_boilerplate(text, source)
        store(folder, f"{ebook}.txt", book, ebook=ebook, title=DICKENS[ebook], source=source)
    parts = [_read_checked(folder, f"{ebook}.txt", DICKENS[ebook]).rstrip("\n") for ebook in chosen]
    store(folder, CORPUS_FILE, PART_SEPARATOR.join(parts) + "\n", title="the corpus", books=tuple(chosen))
    return folder / CORPUS_FILE


def read_dickens(cache: Path | None = None) -> str:
    """The corpus that `fetch_dickens` made, every stored file checked against its digest.

    An InputError when it was never fetched, or a file (named) has changed since.
    """
    folder = (cache or cache_folder()) / "dickens"
    files = read_manifest(folder)
    if CORPUS_FILE not in files:
        raise InputError(f"the Dickens corpus is not in the cache {folder}: {AGAIN}")
    for ebook in files[CORPUS_FILE].books:
        _read_checked(folder, f"{ebook}.txt", DICKENS.get(ebook, ""))
    return _read_checked(folder, CORPUS_FILE, "the corpus")


def _find_books(source: Path, chosen: list[int]) -> dict[int, Path]:
    # The first by name counts, so that 580-0.txt, in UTF-8, goes before 580.txt.
    paths = sorted(map(Path, files_below(source)), key=lambda path: (path.name, path), reverse=True)
    pattern = re.compile(r"(?:pg)?([0-9]+)(?:-0)?\.txt(?:\.utf-?8)?", re.IGNORECASE)
    found = {name[1]: path for path in paths if (name := pattern.fullmatch(path.name))}
    missing = [f"{ebook} ({DICKENS[ebook]})" for ebook in chosen if str(ebook) not in found]
    if missing:
        raise InputError(
            f"{source} lacks {len(missing)} of {len(chosen)} books: {', '.join(missing)};"
            f" files are named like 580.txt, 580-0.txt or pg580.txt, or one prepared {CORPUS_FILE}"
        )
    return {ebook: found[str(ebook)] for ebook in chosen}


def _downloaded(
    ebooks: Iterable[int], progress: bool, mirrors: Sequence[str], pause: float
) -> Iterator[tuple[int, str, str]]:
    """Books with their address and text, each from the first mirror that gives all of it."""
    from pooch import HTTPDownloader
    from requests import RequestException
    from tqdm import tqdm

    wait = 0.0
    for ebook in ebooks:
        failures: dict[str, str] = {}
        for mirror in _ROUNDS * tuple(mirrors):
            time.sleep(wait)
            wait = pause
            address, received = f"{mirror}/{ebook}/pg{ebook}.txt", io.BytesIO()
            # A bar without a total is neither true nor false, which pooch asks before it sets the right one.
            with tqdm(desc=DICKENS[ebook], total=1, unit="B", unit_scale=True, disable=not progress) as bar:
                try:
                    HTTPDownloader(bar, headers=_HEADERS, timeout=30.0)(address, received, None)
                except RequestException as error:
                    failures[mirror] = f"{urlsplit(mirror).hostname}: {_reason(error)}"
                    continue
            yield ebook, address, decode_text(received.getvalue(), address)
            break
        else:
            raise InputError(
                f"cannot fetch {DICKENS[ebook]} ({'; '.join(failures.values())}); the books before it are in"
                " the cache: run it again to go on, or use --from FOLDER with files already there"
            )


def _reason(error: Exception) -> str:
    """The innermost cause of a failed request, which requests wraps in several others."""
    while (cause := getattr(error, "reason", None) or error.__context__) and isinstance(cause, Exception):
        error = cause
    return " ".join(str(error).split())


def _read_checked(folder: Path, name: str, title: str) -> str:
    text = stored_text(folder, name)
    if text is None:
        raise InputError(f"{name} ({title}) in {folder} is missing or does not match its digest: {AGAIN}")
    return text
