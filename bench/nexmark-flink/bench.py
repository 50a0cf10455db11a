#!/usr/bin/env python3
"""weir and Apache Flink over the same files: see README.md. `run.sh` calls this with everything in place."""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compare import differences, files_of, net_result

HERE = Path(__file__).resolve().parent
QUERIES = ["group", "q0", "q1", "q2", "q14", "q17", "q21", "q22"]
PARSE_ONLY = ["all", "count"]
BID_COLUMNS = (
    "auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR, date_time TIMESTAMP(3), extra VARCHAR"
)
AIM = 5.0
CHECKPOINTS_LEAST = 3
TICKS = os.sysconf("SC_CLK_TCK")


def say(text):
    print(text, file=sys.stderr, flush=True)


class Failed(Exception):
    """The benchmark says nothing, or not what it should."""


class Query:
    """A file of queries/: a sink and what goes into it."""

    def __init__(self, name):
        self.name = name
        text = (HERE / "queries" / f"{name}.sql").read_text()
        self.updates = text.startswith("-- updates\n")
        self.statements = [part.strip() for part in re.sub(r"--.*", "", text).split(";") if part.strip()]
        columns = re.search(r"CREATE TABLE answer \((.*?)\)\s*WITH", text, re.S).group(1)
        self.columns = [tuple(column.split(None, 1)) for column in re.split(r",\s+(?![0-9])", columns.strip())]

    def sql(self, sink):
        create, insert = self.statements
        return [create.replace("${sink}", sink), insert]


def options(**given):
    return ", ".join(f"'{name.replace('_', '-')}' = '{value}'" for name, value in given.items())


class Weir:
    """A server with a data folder of its own."""

    def __init__(self, arguments, interval, parallelism=None):
        self.folder = Path(tempfile.mkdtemp(prefix="weir-", dir=arguments.work))
        self.log = open(self.folder / "log", "w+")
        command = [arguments.weir, "serve", "--data-dir", str(self.folder / "data"), "--listen", "127.0.0.1:0"]
        for setting in (f"checkpoint_interval={interval}", f"parallelism={parallelism or arguments.parallelism}"):
            command += ["--set", setting]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"weir listening on .*:(\d+)$", line.strip())
        if not found:
            raise Failed(f"weir did not start: {line}{self.errors()}")
        self.port = found.group(1)

    def errors(self):
        self.log.flush()
        return (self.folder / "log").read_text()[-4000:]

    def psql(self, *statements):
        command = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", self.port, "-U", "weir", "weir"]
        for statement in statements:
            command += ["-c", statement]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"weir: {done.stderr.strip()}\n{self.errors()}")
        return done.stdout.strip()

    def cpu_seconds(self):
        """Of all threads, those that have ended included."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def peak_mib(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) // 1024

    def warm_up(self):
        """What Flink's runner does too: a job of a few rows, so that no timed job pays for the first use of anything."""
        self.psql(
            "CREATE TABLE i (a BIGINT) WITH ('connector' = 'datagen', 'number-of-rows' = '100')",
            "CREATE TABLE o (a BIGINT, n BIGINT) WITH ('connector' = 'blackhole')",
            "SET dml_sync = on",
            "INSERT INTO o SELECT a, COUNT(*) FROM i GROUP BY a",
        )

    def completed_checkpoints(self):
        return int(self.psql("SELECT count(DISTINCT checkpoint) FROM weir_checkpoints WHERE state = 'completed'"))

    def stop(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def run_weir(arguments, form, data, query, sink, interval):
    source = options(connector="file", path=data, format=form)
    with Weir(arguments, interval) as weir:
        weir.warm_up()
        create, insert = query.sql(sink)
        weir.psql(f"CREATE TABLE bid ({BID_COLUMNS}) WITH ({source})", create)
        checkpoints = weir.completed_checkpoints()
        cpu, start = weir.cpu_seconds(), time.monotonic()
        weir.psql("SET dml_sync = on", insert)
        seconds = time.monotonic() - start
        cpu = weir.cpu_seconds() - cpu
        return {
            "seconds": seconds,
            "cpu_seconds": cpu,
            "checkpoints": weir.completed_checkpoints() - checkpoints,
            "peak_mib": weir.peak_mib(),
        }


def run_flink(arguments, form, data, query, sink, interval):
    source = options(connector="filesystem", path=f"file://{data}", format=form)
    with tempfile.TemporaryDirectory(prefix="flink-", dir=arguments.work) as folder:
        folder = Path(folder)
        (folder / "tmp").mkdir()
        create, insert = query.sql(sink)
        script = folder / "query.sql"
        script.write_text(f"CREATE TABLE bid ({BID_COLUMNS}) WITH ({source});\n{create};\n{insert};\n")
        changed = {
            "execution.checkpointing.interval": interval,
            "taskmanager.numberOfTaskSlots": str(arguments.parallelism),
            "parallelism.default": str(arguments.parallelism),
            "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        }
        settings = dict(line.split(": ", 1) for line in (HERE / "config.yaml").read_text().splitlines() if line)
        lines = [f"{name}: {value}\n" for name, value in (settings | changed).items()]
        (folder / "config.yaml").write_text("".join(lines))
        opened = [option for package in ("lang", "util", "time") for option in ("--add-opens", f"java.base/java.{package}=ALL-UNNAMED")]
        command = ["java", "-Xmx6g", *opened, f"-Djava.io.tmpdir={folder}/tmp", f"-Dlog.file={folder}/flink.log"]
        command += [f"-Dlog4j2.configurationFile={HERE}/log4j2.properties", "-cp", arguments.classpath, "RunSql", str(script)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=arguments.timeout, env=os.environ | {"FLINK_CONF_DIR": str(folder)}
        )
        if done.returncode != 0:
            log = folder / "flink.log"
            raise Failed(f"Flink: {done.stderr[-4000:]}\n{log.read_text()[-4000:] if log.exists() else ''}")
        found = dict(re.findall(r"^(\w+) ([\d.]+)$", done.stdout, re.M))
        return {
            "seconds": float(found["JOB_SECONDS"]),
            "cpu_seconds": float(found["JOB_CPU_SECONDS"]),
            "checkpoints": int(found["COMPLETED_CHECKPOINTS"]),
            "peak_mib": int(found["PEAK_RESIDENT_MIB"]),
        }


SYSTEMS = {"weir": run_weir, "flink": run_flink}


def make_data(arguments, form, events):
    """As many files as subtasks, rows dealt round robin, without header. Kept for the next run. Returns the folder and the number of rows."""
    folder = arguments.work / f"bids-{form}-{events}-{arguments.parallelism}"
    counted = folder.with_suffix(".rows")
    if not counted.exists():
        say(f"making {form} files of {events} events in {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        whole = Path(tempfile.mkdtemp(prefix="whole-", dir=arguments.work))
        with Weir(arguments, "0", parallelism=1) as weir:
            weir.psql(
                f"CREATE TABLE made WITH ('connector' = 'nexmark', 'table' = 'bid', 'events.num' = '{events}')",
                f"CREATE TABLE files ({BID_COLUMNS}) WITH ({options(connector='file', path=whole, format=form, roll_size='1 TiB')})",
                "SET dml_sync = on",
                "INSERT INTO files SELECT auction, bidder, price, channel, url, datetime, extra FROM made",
            )
        # One subtask's files, by name, are in the order in which it wrote them.
        written = sorted(files_of(whole))
        split = ["split", "-n", f"r/{arguments.parallelism}", "-d", f"--additional-suffix=.{form}", "-", str(folder / "bids-")]
        with subprocess.Popen(["cat", *map(str, written)], stdout=subprocess.PIPE) as together:
            subprocess.run(split, check=True, stdin=together.stdout)
        if together.returncode != 0:
            raise Failed("the bids could not be read")
        counts = subprocess.run(["wc", "-l", *map(str, sorted(folder.iterdir()))], check=True, capture_output=True, text=True)
        lines = int(counts.stdout.splitlines()[-1].split()[0])
        shutil.rmtree(whole)
        counted.write_text(str(lines))
    # Into the page cache, for both alike.
    for path in folder.iterdir():
        with open(path, "rb") as file:
            while file.read(16 << 20):
                pass
    return folder, int(counted.read_text())


def compare_results(arguments):
    """Both systems write what each query gives into files; the net results must be equal. Returns lines of a table."""
    lines = ["| query | format | rows of the result, net | |", "| --- | --- | --- | --- |"]
    unequal = 0
    for form in arguments.formats:
        data, _ = make_data(arguments, form, arguments.compare_events)
        for query in map(Query, arguments.queries):
            results = {}
            for system, run in SYSTEMS.items():
                with tempfile.TemporaryDirectory(prefix=f"{system}-out-", dir=arguments.work) as out:
                    written = "debezium-json" if query.updates else form
                    path = out if system == "weir" else f"file://{out}"
                    sink = options(connector="file" if system == "weir" else "filesystem", path=path, format=written)
                    run(arguments, form, data, query, sink, getattr(arguments, f"{system}_interval"))
                    results[system] = net_result(out, query.columns, form, query.updates)
            found = differences(results["weir"], results["flink"], ("weir", "Flink"))
            if not found and not results["weir"]:
                found = ["both results are empty"]
            unequal += bool(found)
            for line in found:
                say(f"{query.name}, {form}: {line}")
            say(f"{query.name}, {form}: {'DIFFERENT' if found else 'equal'}")
            lines.append(f"| {query.name} | {form} | {results['weir'].total()} | {'**different**' if found else 'equal'} |")
    return lines, unequal


def figure(runs, of):
    """Median, least and greatest."""
    values = sorted(map(of, runs))
    return statistics.median(values), values[0], values[-1]


def shown(values, digits):
    median, least, greatest = values
    return f"{median:.{digits}f} ({least:.{digits}f}–{greatest:.{digits}f})"


def measure(arguments, results):
    """The timed runs, in turn. Returns lines of a table, and what fell short."""
    lines = [
        "| query | format | weir: k rows per CPU-second | Flink | ratio | weir: CPU-seconds | Flink | weir: wall seconds | Flink | checkpoints: weir, Flink |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    short = []
    for form in arguments.formats:
        data, rows = make_data(arguments, form, arguments.events)
        for query in map(Query, [*arguments.queries, *(PARSE_ONLY if arguments.parse_only else [])]):
            runs = {system: [] for system in SYSTEMS}
            for number in range(arguments.runs):
                for system, run in SYSTEMS.items():
                    interval = getattr(arguments, f"{system}_interval")
                    measured = run(arguments, form, data, query, options(connector="blackhole"), interval)
                    runs[system].append(measured)
                    entry = {"query": query.name, "format": form, "system": system, "run": number, "rows": rows, "interval": interval}
                    with open(results / "runs.jsonl", "a") as file:
                        file.write(json.dumps(entry | measured) + "\n")
                    say(
                        f"{query.name}, {form}, {system}, run {number + 1}: {measured['cpu_seconds']:.2f} CPU-seconds, "
                        f"{measured['seconds']:.2f} s, {measured['checkpoints']} checkpoints, {measured['peak_mib']} MiB"
                    )
            rate = {name: figure(taken, lambda run: rows / run["cpu_seconds"] / 1e3) for name, taken in runs.items()}
            cpu = {name: figure(taken, lambda run: run["cpu_seconds"]) for name, taken in runs.items()}
            wall = {name: figure(taken, lambda run: run["seconds"]) for name, taken in runs.items()}
            checkpoints = {name: min(run["checkpoints"] for run in taken) for name, taken in runs.items()}
            ratio = rate["weir"][0] / rate["flink"][0]
            lines.append(
                f"| {query.name} | {form} | {shown(rate['weir'], 0)} | {shown(rate['flink'], 0)} | {ratio:.1f} "
                f"| {shown(cpu['weir'], 2)} | {shown(cpu['flink'], 2)} | {shown(wall['weir'], 2)} | {shown(wall['flink'], 2)} "
                f"| {checkpoints['weir']}, {checkpoints['flink']} |"
            )
            say(lines[-1])
            if query.name in QUERIES:
                if ratio < AIM:
                    short.append(f"{query.name}, {form}: {ratio:.1f} times Flink's rows per CPU-second, not {AIM:g}")
                for system, count in checkpoints.items():
                    if count < CHECKPOINTS_LEAST:
                        short.append(f"{query.name}, {form}: {system} completed {count} checkpoints in a run, not {CHECKPOINTS_LEAST}")
    return lines, short


def known(names, allowed):
    chosen = [name for name in names.split(",") if name]
    for name in chosen:
        if name not in allowed:
            raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(allowed)}")
    return chosen


def number(text):
    return int(text.replace("_", ""))


def main():
    parser = argparse.ArgumentParser(description="weir and Flink over the same files")
    parser.add_argument("--queries", type=lambda text: known(text, QUERIES), default=QUERIES, help="comma-separated")
    parser.add_argument("--formats", type=lambda text: known(text, ["csv", "json"]), default=["csv", "json"])
    parser.add_argument("--events", type=number, default=16_000_000, help="of Nexmark, 46 in 50 of which are bids, in the timed runs")
    parser.add_argument("--compare-events", type=number, default=1_000_000, help="in the runs whose results are compared")
    parser.add_argument("--runs", type=number, default=5, help="of each system, in turn")
    parser.add_argument("--parallelism", type=number, default=2)
    parser.add_argument("--weir-interval", default="1s", help="between checkpoints")
    parser.add_argument("--flink-interval", default="10s")
    parser.add_argument("--only", choices=["compare", "measure"])
    parser.add_argument("--no-parse-only", dest="parse_only", action="store_false")
    parser.add_argument("--timeout", type=number, default=1800, help="seconds that a run of Flink may take")
    parser.add_argument("--work", type=lambda text: Path(text).resolve(), required=True, help="a folder with room for the files")
    parser.add_argument("--weir", required=True, help="the program")
    parser.add_argument("--classpath", required=True, help="Flink and RunSql")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)

    results = arguments.work / time.strftime("results-%Y%m%d-%H%M%S")
    results.mkdir()
    report, bad = [], []
    try:
        if arguments.only != "measure":
            lines, unequal = compare_results(arguments)
            report += [f"Results of {arguments.compare_events} events:", "", *lines, ""]
            if unequal:
                bad.append(f"{unequal} results differ")
        if arguments.only != "compare":
            lines, short = measure(arguments, results)
            report += [
                f"{arguments.events} events, {arguments.runs} runs of each in turn: medians, and least to greatest. Checkpoints every "
                f"{arguments.weir_interval} (weir) and {arguments.flink_interval} (Flink).",
                "",
                *lines,
            ]
            bad += short
    finally:
        (results / "report.md").write_text("\n".join(report) + "\n")
    print("\n".join(report))
    say(f"kept in {results}")
    for line in bad:
        say(f"bench: {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        say(f"bench: {failure}")
        sys.exit(1)
