"""Writes what RE2 says of patterns made from a grammar, one JSON object a line.

    python3 corpus.py PATTERNS SEED > corpus.jsonl

Needs the package google-re2. Each line is `{"pattern": P, "valid": B, "subjects": [[TEXT, MATCHES], ...]}`, where
MATCHES says whether the pattern matches the whole text, as Falco matches. The grammar makes most patterns valid;
some of its parts are what RE2 refuses or reads in its own way.
"""

import json
import random
import sys

import re2

LITERALS = list("aAbBkKsS0_ -/.") + ["é", "ß", "ſ", "K", "Σ", "ς", "σ", "\n", "\t", "\v", "中", "😀"]
ESCAPES = [
    r"\d", r"\D", r"\s", r"\S", r"\w", r"\W", r"\b", r"\B", r"\A", r"\z", r"\C", r"\n", r"\t", r"\v", r"\f", r"\a",
    r"\r", r"\.", r"\-", r"\/", r"\_", r"\<", r"\>", r"\&", r"\~", r"\#", r"\ ", r"\"", r"\pN", r"\pL", r"\PL",
    r"\p{Greek}", r"\p{^Greek}", r"\P{^Lu}", r"\p{Lu}", r"\p{Han}", r"\p{C}", r"\p{Any}", r"\x41", r"\x{e9}", r"\x0a",
    r"\x{1F600}", r"\0", r"\012", r"\101", r"\77", r"\Qa.b*\E", r"\Q\E", r"\Q[", r"\Qa\E",
]
# What RE2 refuses, or may be taken to refuse.
ODD = [
    "*", "+", "?", "**", "++", "{", "}", "{,5}", "{01}", "{2", "{1001}", "{3,2}", "{99999999999}", "]", "[", "[]", "[^]",
    "(", ")", "|", "||", r"\Z", r"\G", r"\K", r"\h", r"\e", r"\u00e9", r"\1", r"\8", r"\x", r"\x{}", r"\x{110000}",
    r"\x{d800}", r"\E", r"\é", "(?x)", "(?i)", "(?s)", "(?m)", "(?U)", "(?-i)", "(?i-s)", "(?-)", "(?)", "(?=a)", "(?!a)",
    "(?<=a)", "(?<!a)", "(?>a)", "(?P<n>a)", "(?<n>b)", "(?P=n)", "(?P<>a)", "(?P<1>a)", "(?P<a-b>c)", "(?#c)", r"\p{Latn}",
    r"\p{greek}", r"\p{Letter}", r"\pX", r"\p", r"\p{", "[z-a]", r"[a-\d]", r"[\b]", r"[\C]", r"[\Qa\E]", "[[:foo:]]",
    "[[:alpha:]", "(a{500}){3}", "(a{30}){30}", "((a{10}){10}){11}", "\\",
]
ITEMS = [
    "a-z", "A-Z", "0-9", "a-", "-", "--", "!--", "+-/", "&&", "~~", "--a", "^", "[", "[[", ".", "*", "a-c-e", r"\w-.", r"\d",
    r"\D", r"\s", r"\S", r"\W", r"\]", r"\\", r"\-", r"\^", "[:alpha:]", "[:^digit:]", "[:space:]", "[:word:]", "[:punct:]",
    r"\pL", r"\p{Greek}", r"\P{Lu}", r"\x41-\x5a", r"\n", "é", "à-ü", "ſ", r"\x{d7ff}-\x{e000}", "k", "s",
]
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{0}", "{1}", "{2}", "{0,2}", "{1,}", "{2,3}?", "{,3}", "{0,0}"]
FLAGS = ["(?:", "(", "(?i:", "(?s:", "(?m:", "(?i-s:", "(?-i:", "(?U:", "(?P<g>", "(?<h>"]


SAMPLES = list("aAkKmMsS059_ -/.&\n\t\v") + ["é", "É", "ſ", "Σ", "ς", "ü", "中", "\u0660", "\u0007", "\u017f"]


def bracketed(rng):
    items = "".join(rng.choice(ITEMS) for _ in range(rng.randint(1, 3)))
    return "[" + rng.choice(["", "", "^", "]", "^]", "-"]) + items + "]"


def atom(rng, depth):
    """Returns a part of a pattern, and a text that it may match."""
    kind = rng.random()
    if kind < 0.40:
        literal = rng.choice(LITERALS)
        return "\\." if literal == "." and rng.random() < 0.5 else literal, literal
    if kind < 0.60:
        return rng.choice(ESCAPES), rng.choice(SAMPLES)
    if kind < 0.75:
        return bracketed(rng), rng.choice(SAMPLES)
    if kind < 0.80:
        return rng.choice(["^", "$", ".", ".*"]), rng.choice(["", *SAMPLES])
    if kind < 0.82:
        return rng.choice(ODD), rng.choice(["", *SAMPLES])
    if depth == 0:
        literal = rng.choice(LITERALS)
        return literal, literal
    inner, sample = expression(rng, depth - 1)
    return rng.choice(FLAGS) + inner + ")", sample


def expression(rng, depth):
    """Returns a pattern, and a text that it may match."""
    alternatives, samples = [], []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        parts, sample = [], ""
        for _ in range(rng.randint(0 if depth < 2 else 1, 4)):
            part, text = atom(rng, depth)
            if rng.random() < 0.25:
                part += rng.choice(REPEATS)
                text *= rng.randint(0, 3)
            parts.append(part)
            sample += text
        alternatives.append("".join(parts))
        samples.append(sample)
    prefix = rng.choice(["(?i)", "(?s)", "(?m)", "(?i)"]) if rng.random() < 0.1 else ""
    return prefix + "|".join(alternatives), rng.choice(samples)


def subjects(rng, pattern, sample):
    texts = ["", "a", "\n", sample, sample.swapcase(), sample[1:], sample + rng.choice(SAMPLES)]
    plain = pattern.replace("\\", "")
    for _ in range(3):
        texts.append("".join(rng.choice(LITERALS) for _ in range(rng.randint(1, 4))))
        start = rng.randrange(len(plain) + 1)
        texts.append(plain[start : start + rng.randint(1, 5)])
        at = rng.randrange(len(sample) + 1)
        texts.append(sample[:at] + rng.choice(SAMPLES) + sample[at + 1 :])
    return list(dict.fromkeys(texts))


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    options = re2.Options()
    options.log_errors = False
    odd = [before + part + after for part in ODD + ESCAPES for before in ("", "a") for after in ("", "*", "b")]
    for number in range(count):
        pattern, sample = (odd[number], "ab") if number < len(odd) else expression(rng, rng.choice([0, 1, 1, 2, 3]))
        try:
            compiled = re2.compile(pattern, options)
        except re2.error:
            line = {"pattern": pattern, "valid": False, "subjects": []}
        else:
            matches = [[text, compiled.fullmatch(text) is not None] for text in subjects(rng, pattern, sample)]
            line = {"pattern": pattern, "valid": True, "subjects": matches}
        print(json.dumps(line, ensure_ascii=False))


main()
