"""Values that nobody should give, as YAML and as arguments."""

NUMBERS = (
    "0", "-1", "1", "2", "3", "-0", "1.5", "1e300", "1e-320", "-1e300", ".nan", ".inf", "-.inf", "nan", "inf",
    "1e3", "1_000", "0x10", "0o7", "010", "1:30", "2**3", "4294967295", "4294967296", "10000000", "100000",
    "1000000000000", "9223372036854775807", "9223372036854775808", "1" + "0" * 400, "9" * 5000,
    "0x" + "f" * 6000,
)  # fmt: skip
TEXTS = (
    "", "''", "null", "~", "true", "off", "yes", "a", "ä", "日本語", "🙂", "\u202eabc",
    "x" * 300, "x" * 20_000,
    "../elsewhere", "/dev/null", "/dev/zero", "/", ".", "a b", "a=b", "%s", "{0}", "$HOME", "--json",
    "\x07bell",
    "nul\x00", "\udcff", "2020-01-01", "2020-13-45", "2020-01-01T00:00:00Z", "<<", "=", "?", "!", "&a", "*a",
)  # fmt: skip
STRUCTURES = (
    "[]", "{}", "[1]", "[1, 2]", "[1, 2, 3]", "[a, b]", "[null]", "[[1], [2]]", "{a: 1}", "{1: 2}",
    "{[1]: 2}",
    "{null: 1}", "{a: {b: {c: 1}}}", "[" * 15 + "]" * 15, "[" * 5000 + "]" * 5000, "{a: " * 3000 + "}" * 3000,
    "[.nan, .inf]", "[rope, 3]", "[rope, gpa-mull]", "[" + ", ".join(["gpa-mul"] * 32) + "]",
    "{a: &x 1, b: *x}",
    "&x [*x, *x]", "!!python/object/apply:os.system [ls]", "!!binary aGk=", "!!set {a}", "!!int abc",
    "!!float x",
    "!!timestamp x", "!!bool maybe", "!mine 1", "{a: 1, a: 2}", "[1, 2", "{a", "'", '"\\x', "a: b: c",
    "- a\n- b",
    "--- a\n--- b", "\t- a", "%YAML 9.9\n---\na", "@", "`", "|", ">",
)  # fmt: skip
YAML = (*NUMBERS, *TEXTS, *STRUCTURES)
