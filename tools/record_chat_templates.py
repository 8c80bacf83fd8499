#!/usr/bin/env python3
"""Renders tests/data/text/chat_templates/*.jinja with jinja2, set up as Hugging Face transformers sets it up, and records
inputs and results in tests/data/text/chat_templates.json.

    python -m venv V && V/bin/pip install jinja2==3.1.6 && V/bin/python tools/record_chat_templates.py [--check]

With --check nothing is written; the exit status is 1 when the recorded results differ from jinja2's. The templates are
our own, in the manner of public model families.
"""
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

DATA = pathlib.Path(__file__).resolve().parents[1] / "tests/data/text"
UNIX_TIME = 1_700_000_000  # noon-ish of 14 Nov 2023 everywhere on Earth but the far Pacific

TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a\ncity.", "parameters": {
        "type": "object", "properties": {
            "city": {"type": "string", "description": "Name, e.g. \"Zürich\" <or> 'Ulm'"},
            "days": {"type": "array", "items": {"type": "integer"}},
            "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}, "required": ["lat"]},
            "units": {"type": "string", "enum": ["C", "F"]}},
        "required": ["city", "where"]}}}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 2], "x": None, "f": 1.5}}}

INPUTS = {
    "one_user": {"messages": [{"role": "user", "content": "Hi"}]},
    "no_prompt": {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Hello! "}], "add_generation_prompt": False},
    "system": {"messages": [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "Line 1\n\nLine 2 \n"},
                            {"role": "assistant", "content": "ok <tag> & \"quoted\""}, {"role": "user", "content": "日本語 🙂 {{ x }} {% y %}"}]},
    "two_users": {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": " one "}, {"type": "image"}, {"type": "text", "text": "two"}]}]},
    "tools": {"messages": [{"role": "user", "content": "Weather?"}], "tools": [TOOL, TOOL]},
    "tool_round": {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Weather?"},
                                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                                {"role": "tool", "tool_call_id": "abcdefghi", "content": "{\"t\": 21}"},
                                {"role": "tool", "tool_call_id": "abcdefghi", "content": "more"},
                                {"role": "assistant", "content": "21 degrees."}, {"role": "user", "content": "Thanks"}], "tools": [TOOL]},
    "thinking": {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "<think>\nsum\n</think>\n\n4"},
                              {"role": "user", "content": "3+3?"}, {"role": "assistant", "content": "<think>\neasy\n</think>\n\n6"}]},
    "no_thinking": {"messages": [{"role": "user", "content": "2+2?"}], "extra": {"enable_thinking": False}},
    "empty": {"messages": []},
    "documents": {"messages": [{"role": "user", "content": "Read"}], "extra": {"documents": [{"title": "A", "text": "x"}, {"title": "B", "n": 2}]}},
    "unknown_role": {"messages": [{"role": "critic", "content": "bad"}]},
}


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: datetime.datetime.fromtimestamp(UNIX_TIME, datetime.timezone.utc).strftime(format)
    return env


def render(env, source, case):
    variables = {"messages": case["messages"], "tools": case.get("tools"), "documents": None,
                 "add_generation_prompt": case.get("add_generation_prompt", True), "bos_token": "<s>", "eos_token": "</s>"}
    variables.update(case.get("extra", {}))
    try:
        return {"text": env.from_string(source).render(**variables)}
    except Exception as error:  # the message is compared only for raise_exception
        own = type(error) is jinja2.exceptions.TemplateError
        return {"raised": str(error)} if own else {"error": type(error).__name__}


def main():
    env = environment()
    results = {}
    for path in sorted((DATA / "chat_templates").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        results[path.stem] = {name: render(env, source, case) for name, case in INPUTS.items()}
    text = json.dumps({"unix_time": UNIX_TIME, "inputs": INPUTS, "results": results}, ensure_ascii=False, indent=1) + "\n"
    target = DATA / "chat_templates.json"
    if "--check" in sys.argv:
        same = target.read_text(encoding="utf-8") == text
        print("recorded results are jinja2's" if same else f"{target.name} differs from what jinja2 {jinja2.__version__} renders")
        return 0 if same else 1
    target.write_text(text, encoding="utf-8")
    print({name: [sum("text" in r for r in rs.values()), len(rs)] for name, rs in results.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
