# SPDX-License-Identifier: BSD-2-Clause
"""Generates mutants, that is, small bugs, of C and Python sources (mutate.py).

A mutant replaces one span of a file. Operators work on a copy of the text in
which comments, strings and everything outside function bodies are blank, so
that offsets are those of the file. They rely on the tree's formatting: a
function's braces are in column 0, and operators have spaces around them."""

import collections
import io
import re
import tokenize

OPERATORS = {}
Mutant = collections.namedtuple("Mutant", "file line column operator old new start end")

C_BLANK = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
C_FUNCTION = re.compile(r"^\{\n.*?^\}", re.S | re.M)
C_CONSTANT = re.compile(r"^#define[ ]+\w+[ ]+[^\n\\]*$", re.M)
CALL = re.compile(r"(?:\(void\) ?)?[a-z_][\w.>-]*\(")
NO_CALL = re.compile(r"(?:if|for|while|switch|return|sizeof|assert|static_assert)\b")
# The sanitizers, not the tests, find leaks and missing locks.
SANITIZED = re.compile(r"free|destroy|close|unmap|mutex_lock|mutex_init|cond_init|printf|perror")
ORDERING = re.compile(r"\b\w*(?:flush|unlock|fsync|discard|fence|barrier)(?:_\w+)?\(")
STATEMENT = re.compile(r"^( +)((?!return|break|continue|goto|case|default|const|struct|static)"
                       r"[a-z*(][^\n{}#]*;)\n", re.M)
DECLARATION = re.compile(r"(?:[a-z]\w* )+\**\w+(?:\[.*\])?(?: =.*)?;")
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||",
         "||": "&&", "and": "or", "or": "and"}


def operator(function):
    OPERATORS[function.__name__] = function
    return function


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def keep(pattern, text):
    """Returns the text with everything blank that the pattern does not match."""
    parts, at = [], 0
    for found in pattern.finditer(text):
        parts += [blank(text[at:found.start()]), found.group()]
        at = found.end()
    return "".join(parts) + blank(text[at:])


def closing(code, opening):
    """Returns the offset behind the parenthesis that closes the one at `opening`, or 0."""
    depth = 0
    for found in re.compile(r"[()]").finditer(code, opening):
        depth += 1 if found.group() == "(" else -1
        if depth == 0:
            return found.end()
    return 0


def python_code(text):
    """Returns the text without comments and strings, and without what is outside of functions."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    code = list(text)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            start = starts[token.start[0] - 1] + token.start[1]
            end = starts[token.end[0] - 1] + token.end[1]
            code[start:end] = blank(text[start:end])
    return re.sub(r"^\S.*$", lambda m: blank(m.group()), "".join(code), flags=re.M)


def before(code, offset):
    """Returns the last character before the offset that is not blank."""
    return code[:offset].rstrip()[-1:]


@operator
def condition(code):
    """Negates the condition of a branch or loop."""
    for found in re.finditer(r"\b(?:if|while) (?=\()", code):
        end = closing(code, found.end())
        yield found.end(), end, f"(!{code[found.end():end]})"
    for found in re.finditer(r"^ +(?:if|elif|while) (?!\()(.+)(?=:$)", code, re.M):
        yield *found.span(1), f"not ({found.group(1)})"


@operator
def comparison(code):
    """Shifts or inverts a comparison, or exchanges `and` and `or`."""
    for found in re.finditer(r"(?<= )(<=?|>=?|==|!=|&&|\|\||and|or)(?=[ \n])", code):
        yield *found.span(1), SWAPS[found.group(1)]


@operator
def bound(code):
    """Drops `+ 1` or `- 1`."""
    for found in re.finditer(r" [+-] 1u?(?![\w.])", code):
        yield *found.span(), ""


def calls(code):
    """Returns the spans of statements that are a call and use no result."""
    for found in re.finditer(r"^ +(?=\S)", code, re.M):
        call = CALL.match(code, found.end())
        if (not call or NO_CALL.match(call.group()) or SANITIZED.search(call.group())
                or before(code, found.end()) in tuple("=,(+-&|?")):
            continue
        end = closing(code, call.end() - 1)
        if end and re.match(r";?\n", code[end:end + 2]):
            yield found.end(), end


@operator
def call(code):
    """Drops a call whose result is not used."""
    for start, end in calls(code):
        yield start, end, "(void)0" if code[end:end + 1] == ";" else "pass"


@operator
def order(code):
    """Exchanges two neighbouring statements, one of which is a call."""
    for found in STATEMENT.finditer(code):
        after = STATEMENT.match(code, found.end())
        if (not after or after.group(1) != found.group(1) or before(code, found.start()) not in ";{}"
                or any(DECLARATION.fullmatch(s.group(2)) for s in (found, after))
                or any(s.group(2).count("(") != s.group(2).count(")") for s in (found, after))
                or not (CALL.search(found.group(2)) or CALL.search(after.group(2)))
                or SANITIZED.search(found.group(2) + after.group(2))):
            continue
        yield found.start(2), after.end(2), f"{after.group(2)}\n{found.group(1)}{found.group(2)}"


@operator
def ordering(code):
    """Removes a flush, an unlock, a discard or a fence."""
    for found in re.finditer(r"\bBD_FUA\b", code):
        yield *found.span(), "0"
    for found in ORDERING.finditer(code):
        end = closing(code, found.end() - 1)
        yield found.start(), end, "(void)0" if before(code, found.start()) in ";{})" else "0"


@operator
def constant(code):
    """Changes a number, or drops a flag of several."""
    for found in re.finditer(r"(?<![\w.])(0x[0-9a-f]+|\d+)(?=[uUlL]*(?![\w.]))", code):
        yield *found.span(), str(int(found.group(), 0) + 1) if found.group() == "0" or \
            not re.match(r"0\d", found.group()) else "1"
    for found in re.finditer(r"\b[A-Z][A-Z0-9_]+ \| ", code):
        yield *found.span(), ""


@operator
def result(code):
    """Returns success where an error is returned."""
    for found in re.finditer(r"\breturn (-E[A-Z0-9]+|err|rc)(?=;)", code):
        yield *found.span(1), "0"


def code_of(file, text):
    if file.endswith(".py"):
        return python_code(text)
    sound = C_BLANK.sub(lambda m: blank(m.group()), text)
    return keep(C_FUNCTION, sound), keep(C_CONSTANT, sound)


def mutants_of(file, text):
    """Returns the mutants of a file."""
    code = code_of(file, text)
    code, constants = code if isinstance(code, tuple) else (code, "")
    found = []
    for name, function in OPERATORS.items():
        sites = list(function(code)) + (list(function(constants)) if name == "constant" else [])
        for start, end, new in sites:
            # The operator saw blanks instead of strings; the mutant keeps the strings.
            if start < end and not re.search(r'["\'#]|//|/\*', text[start:end]):
                line = text.count("\n", 0, start) + 1
                column = start - (text.rfind("\n", 0, start) + 1) + 1
                found.append(Mutant(file, line, column, name, text[start:end], new, start, end))
    return found


def planted(text, mutant):
    return text[:mutant.start] + mutant.new + text[mutant.end:]


# For each operator, lines of a function and the lines that replace them.
SELF_TEST = [
    ("condition", "    if (a(b))", "    if (!(a(b)))"),
    ("comparison", "    x = a <= b;", "    x = a < b;"),
    ("bound", "    x = n - 1;", "    x = n;"),
    ("call", "    put(x, y(1));", "    (void)0;"),
    ("order", "    put(x);\n    x = 0;", "    x = 0;\n    put(x);"),
    ("ordering", "    err = bd_flush(dev);", "    err = 0;"),
    ("ordering", "    pthread_mutex_unlock(&l);", "    (void)0;"),
    ("constant", "    x = ONE | TWO;", "    x = TWO;"),
    ("constant", "    x = 15u;", "    x = 16u;"),
    ("result", "    return -EIO;", "    return 0;"),
]
# These have no mutants: declarations, comments, strings, and the order of leaks.
SELF_TEST_NONE = ["    int x;\n    char *y;", "    /* if (a < b) */", '    s = "a < 1";', "    free(p);"]


def self_test():
    """Returns what the operators miss, one text for each."""
    failed = []
    for name, lines, wanted in SELF_TEST:
        text = "void f(void)\n{\n%s\n}\n"
        found = [planted(text % lines, m) for m in mutants_of("f.c", text % lines)
                 if m.operator == name]
        if text % wanted not in found:
            failed.append(f"{name}: {lines.strip()}")
    for lines in SELF_TEST_NONE:
        if mutants_of("f.c", "void f(void)\n{\n%s\n}\n" % lines):
            failed.append(f"none: {lines.strip()}")
    if missing := set(OPERATORS) - {case[0] for case in SELF_TEST}:
        failed.append(f"without a case: {missing}")
    return failed


if __name__ == "__main__":
    print("\n".join(missed := self_test()) or "mutants: every operator applies")
    raise SystemExit(bool(missed))
