"""Net results in folders of files, as weir's `file` and Flink's `filesystem` sinks write them, and their comparison.

Rows are compared as multisets. A result that is updated is a changelog in Debezium's form, which is folded: a row counts as often as it was put in, less
as often as it was taken out. What the two write differently and mean alike is made one: trailing zeros of a decimal, and of the fraction of a second; in
CSV, where Flink makes no difference between them, NULL and the empty text.
"""

import csv
import json
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path

csv.field_size_limit(1 << 30)


def value(text, sql_type):
    """A value, NULL being None, as its one text."""
    if text is None:
        return None
    if sql_type.startswith("DECIMAL"):
        decimal = Decimal(str(text))
        return f"{decimal.normalize():f}" if decimal else "0"
    if sql_type.startswith("TIMESTAMP"):
        text = str(text).replace("T", " ").removesuffix("Z")
        return text.rstrip("0").rstrip(".") if "." in text else text
    return str(text)


def row(values, columns):
    return json.dumps([value(text, sql_type) for text, (_, sql_type) in zip(values, columns, strict=True)])


def files_of(folder):
    """The files that are visible: neither their name nor that of a folder above begins with `.` or `_`."""
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and not any(part[0] in "._" for part in path.relative_to(folder).parts):
            yield path


def members(record, columns):
    return row([record[name] for name, _ in columns], columns)


def net_result(folder, columns, form, updates):
    """How often each row is there. `columns` are pairs of name and type, `form` is csv or json; with `updates` the files are changelogs."""
    rows = Counter()
    for path in files_of(folder):
        with open(path, encoding="utf-8", newline="") as lines:
            if updates:
                for line in lines:
                    change = json.loads(line, parse_float=Decimal)
                    if change["before"] is not None:
                        rows[members(change["before"], columns)] -= 1
                    if change["after"] is not None:
                        rows[members(change["after"], columns)] += 1
            elif form == "json":
                for line in lines:
                    rows[members(json.loads(line, parse_float=Decimal), columns)] += 1
            else:
                is_text = [sql_type.startswith("VARCHAR") for _, sql_type in columns]
                for record in csv.reader(lines):
                    values = [text if text or texts else None for text, texts in zip(record, is_text, strict=True)]
                    rows[row(values, columns)] += 1
    taken_too_often = [text for text, count in rows.items() if count < 0]
    if taken_too_often:
        raise ValueError(f"{folder}: {len(taken_too_often)} rows are taken out more often than they were put in: {taken_too_often[:3]}")
    return +rows


def differences(left, right, names):
    """Lines that say how two results differ; none where they are equal."""
    if left == right:
        return []
    lines = [f"{names[0]} has {left.total()} rows, {names[1]} has {right.total()}"]
    for more, fewer, name in ((left, right, names[0]), (right, left, names[1])):
        only = more - fewer
        lines += [f"only {name}, {count} times: {text}" for text, count in list(only.items())[:5]]
    return lines


if __name__ == "__main__":
    sys.exit("compare.py is used by bench.py")
