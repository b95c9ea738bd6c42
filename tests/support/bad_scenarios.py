"""A scenario, and changes of it of which each has one fault, with what is said of it."""

GOOD = """\
name: small
system: ferry
device: board.yaml
model: tiny
link:
  rate: 850 Mbit/s
  rtt: 4 ms
workload:
  kind: context-reuse
  context: 4Ki tokens
"""
BOARD = """\
name: board
main: gpu
processors:
  gpu: {kind: gpu, flop_per_s: 30 Tflop/s, bytes_per_s: 200 GB/s}
memory: {unified: true, capacity_bytes: 64 GiB, bytes_per_s: 200 GB/s}
decompressor: {values_per_s: 50 Mvalue/s}
sources: {}
"""
LINK_KEYS = "known here: instance, jitter, offset, on_end, outages, rate, round_trips, rtt, scale, trace, up"
# What stands in GOOD, what stands there instead, and the message; None: it is checked elsewhere.
ONE_FAULT: list[tuple[str, str, str | None]] = [
    # Unknown and missing keys.
    ("  rtt:", "  rt:", f"s.yaml:7: link.rt: unknown key; {LINK_KEYS}; did you mean 'rtt'?"),
    ("  rtt:", "  banana:", f"s.yaml:7: link.banana: unknown key; {LINK_KEYS}"),
    ("name: small\n", "", "s.yaml:1: name: is missing; write it like name: mine"),
    ("  context: 4Ki tokens\n", "", "s.yaml:8: workload.context: is missing; write it like context: 32Ki tokens"),
    # Units.
    ("4 ms", "4", "s.yaml:7: link.rtt: 4 has no unit; write it like '4 ms'"),
    ("4 ms", "'4'", "s.yaml:7: link.rtt: '4' has no unit; write it like '4 ms'"),
    ("4 ms", "4 mb", "s.yaml:7: link.rtt: '4 mb' is a size, not a time; write it like '4 ms'"),
    ("4 ms", "true", "s.yaml:7: link.rtt: true has no unit; write it like '4 ms'"),
    ("4 ms", "[4 ms]", "s.yaml:7: link.rtt: ['4 ms'] is not a time; write it like '4 ms'"),
    (
        "850 Mbit/s",
        "850 MHz",
        "s.yaml:6: link.rate: '850 MHz' is a frequency, not a rate; write it like '850 Mbit/s'",
    ),
    # Not finite, negative, too much.
    ("4 ms", ".nan", "s.yaml:7: link.rtt: .nan is not a finite number"),
    ("4 ms", "-.inf", "s.yaml:7: link.rtt: -.inf is not a finite number"),
    ("4 ms", "nan ms", "s.yaml:7: link.rtt: 'nan ms' is not a time; write it like '4 ms'"),
    ("4 ms", "-4 ms", "s.yaml:7: link.rtt: '-4 ms' is out of range: a time lies between 0 and 1e+07 s"),
    (
        "850 Mbit/s",
        "0 Mbit/s",
        "s.yaml:6: link.rate: '0 Mbit/s' is out of range: a rate lies above 0 and up to 1e+14 B/s",
    ),
    ("4Ki tokens", "1G tokens", "s.yaml:10: workload.context: 1000000000: must be at most 10,000,000"),
    ("4Ki tokens", "0", "s.yaml:10: workload.context: 0: must be at least 1"),
    ("4Ki tokens", "-5", "s.yaml:10: workload.context: -5: must be at least 1"),
    ("4Ki tokens", "9" * 25, f"s.yaml:10: workload.context: {'9' * 25}: must be at most 10,000,000"),
    ("4Ki tokens", "1.5", "s.yaml:10: workload.context: 1.5 is not a whole number"),
    (
        "4Ki tokens",
        "4Ki requests",
        "s.yaml:10: workload.context: '4Ki requests' is not a count; write it like 32768 or '32Ki tokens'",
    ),
    (
        "  context: 4Ki tokens",
        "  context: 10M tokens\n  requests: 100k",
        # 9,766 token chunks x 4 layers x 2 KV heads x 100,000
        "s.yaml:11: workload.requests: make 7,812,800,000 chunks, at most 100,000,000 will do",
    ),
    (
        "  context: 4Ki tokens",
        "  context: 10M tokens\n  chunk_tokens: 1",
        "s.yaml:10: workload.context: makes 40,000,000 units (token chunks x layers), at most 500,000 will do, "
        "about a minute of simulation; shorten it, or enlarge chunk_tokens",
    ),
    (
        "  context: 4Ki tokens",
        "  context: 64Ki tokens\n  chunk_tokens: 1\ncoupling: per_head",
        "s.yaml:10: workload.context: makes 524,288 units (token chunks x layers x KV heads), at most 500,000 will "
        "do, about a minute of simulation; shorten it, or enlarge chunk_tokens",
    ),
    (
        "  context: 4Ki tokens",
        "  context: 4Ki tokens\n  output: 1M tokens\n  requests: 3",
        "s.yaml:11: workload.output: 1,000,000 tokens for each of 3 requests make 3,000,000; at most 2,000,000 will do",
    ),
    (
        "context-reuse\n  context: 4Ki tokens",
        "decode\n  context: 4Ki tokens\n  output: 1M tokens",
        "s.yaml:11: workload.output: 1,000,000 tokens through 4 layers take longer than a run may; at most 500,000 "
        "will do, and workload.decoded cuts what is decoded of workload.output",
    ),
    # Names.
    (
        "board.yaml",
        "rtx-5080-laptp",
        None,
    ),
    ("board.yaml", "bord.yaml", "s.yaml:3: device: 'bord.yaml' is not there"),
    ("board.yaml", ".", "s.yaml:3: device: '.' is a folder, not a file"),
    ("board.yaml", "/dev/zero", "s.yaml:3: device: '/dev/zero' is a pipe or a device, not a regular file"),
    ("board.yaml", "null", "s.yaml:3: device: null is not a mapping (key: value)"),
    ("board.yaml", "[a]", "s.yaml:3: device: a list is not a mapping (key: value)"),
    ("board.yaml", "7", "s.yaml:3: device: 7 is not a mapping (key: value)"),
    (
        "context-reuse",
        "context-reus",
        "s.yaml:9: workload.kind: 'context-reus' is none of context-reuse, decode, assist, session;"
        " did you mean 'context-reuse'?",
    ),
    (
        "name: small",
        "name: ../../etc/passwd",
        "s.yaml:1: name: '../../etc/passwd' is not a name of at most 100 letters, digits, blanks and . _ + -, "
        "a letter or digit first",
    ),
    ("name: small", "name: 7", "s.yaml:1: name: 7 is not a text"),
    # Things that do not go together.
    (
        "  rate: 850 Mbit/s\n",
        "",
        "s.yaml:6: link: needs a trace (trace: wifi-campus) or a constant rate (rate: 850 Mbit/s)",
    ),
    (
        "  rtt: 4 ms",
        "  trace: wifi-campus",
        "s.yaml:6: link.rate: stands beside a trace; keep one of them and set the other to null",
    ),
    ("  rate: 850 Mbit/s", "  trace: ./walk.csv", "s.yaml:6: link.trace: './walk.csv' is not there"),
    ("  context: 4Ki tokens", "  context: 4Ki\n  chunks: rec", "s.yaml:11: workload.chunks: 'rec' is not there"),
    (
        "  context: 4Ki tokens",
        "  context: 4Ki\n  arrivals: {}",
        "s.yaml:11: workload.arrivals: needs exactly one of rate (rate: 0.2 requests/s) and every (every: 5 s)",
    ),
    (
        "name: small",
        "name: small\nload: {share: 0.5, processor: npu}",
        "s.yaml:2: load.processor: 'npu' is no processor of the device; it has gpu",
    ),
    ("name: small", "name: small\nload: {share: 1.5}", "s.yaml:2: load.share: 1.5: must be below 1"),
    ("name: small", "name: small\nseed: 1.5", "s.yaml:2: seed: 1.5 is not a whole number"),
    ("name: small", "name: small\nseed: -1", "s.yaml:2: seed: -1: must be at least 0"),
    (
        "name: small",
        "name: small\npolicies: {codec: [a]}",
        "s.yaml:2: policies.codec.name: ['a'] is not a policy's name or a setting's value",
    ),
    ("name: small", "name: small\npolicies: greedy", "s.yaml:2: policies: 'greedy' is not a mapping (key: value)"),
    (
        "  rtt: 4 ms",
        "  outages: [{start: 2 s, duration: 2 s}, {start: 3 s, duration: 1 s}]",
        "s.yaml:7: link.outages: overlap or are out of order; list them by start, one after the other",
    ),
    ("  rtt: 4 ms", "  outages: 3 s", "s.yaml:7: link.outages: '3 s' is not a list"),
    (
        "  rtt: 4 ms",
        "  outages: [{start: 2 s}]",
        "s.yaml:7: link.outages.0.duration: is missing; write it like duration: 4 ms",
    ),
    # YAML itself.
    ("rtt: 4 ms", "rtt: 4 ms: 5", "s.yaml:7: not valid YAML: mapping values are not allowed here"),
    ("  rtt: 4 ms", "  rtt: 4 ms\n  rtt: 5 ms", "s.yaml:8: link: rtt stands twice, first in line 7; keep one"),
    ("4 ms", "!!python/object/apply:os.system [ls]", None),
    ("4 ms", "!secret x", "s.yaml:7: the tag !secret is not read; write the plain value"),
    ("4 ms", "*nowhere", "s.yaml:7: not valid YAML: found undefined alias 'nowhere'"),
    ("4 ms", "&loop [*loop]", "s.yaml:7: link.rtt.0: this alias contains itself; write the value out"),
    (
        "link:\n",
        "link:\n  <<: {rtt: 4 ms}\n",
        "s.yaml:6: link: <<: merge keys are not read; name another file with extends",
    ),
    ("link:\n", "link:\n  [a, b]: 1\n", "s.yaml:6: link: a key is a word, not a mapping or a list"),
    ("4 ms", '"\\U99999999"', None),
    ("4 ms", '"\\ud800"', "s.yaml:7: link.rtt: half a character (a lone surrogate) in '\\ud800'"),
    ("4 ms", "a\0b", "s.yaml:7: not valid YAML: U+0000 may not occur"),
    ("4 ms", "[" * 5000, "s.yaml:7: nested more than 20 deep, which no scenario needs"),
    ("4 ms", "x" * 10_001, "s.yaml:7: link.rtt: a text of 10,001 characters; at most 10,000 will do"),
    (
        "  rtt",
        "  " + "k" * 101,
        f"s.yaml:7: link: {repr('k' * 101)[:40]} is no key: at most 100 printable characters",
    ),
    ("name: small", "name: small\n---\nname: other", None),
]
