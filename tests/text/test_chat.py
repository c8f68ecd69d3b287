"""Chat templates: the text and ids that transformers makes, in a sandbox, with bos once."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from jaxspec.text import Tokenizer, render_chat

CHATML = """{%- if messages[0].role != "system" %}
    {{- "<|im_start|>system\\nBe kind.<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\\n" }}
{%- endif %}"""
BOS_CHAT = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
TEMPLATES = [
    CHATML,
    BOS_CHAT,
    "{% for m in messages %}\n  {% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson(indent=2) }}\n{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% if tools %}{{ tools | tojson }}{% else %}no tools{% endif %}{{ undefined_name }}",
    "{{ messages[-1].content.strip().split(' ')[0] }}{{ strftime_now('%Y') }}",
]
USER = {"role": "user", "content": " <b>Où & 'où' ☕</b> "}
CHATS = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "Ici."}, USER],
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("generate", [True, False])
def test_text_equals_transformers(template, chat, generate):
    [theirs], _ = render_jinja_template([chat], chat_template=template, add_generation_prompt=generate, bos_token="<s>")
    assert render_chat(template, chat, generate=generate, variables={"bos_token": "<s>"}) == theirs


def test_default_system_message_stands_only_without_one():
    assert render_chat(CHATML, [USER]).startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n")
    with_system = render_chat(CHATML, [{"role": "system", "content": "Be brief."}, USER])
    assert with_system.startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
    assert "Be kind" not in with_system


def test_generate_opens_the_assistants_turn(byte_level):
    ours = Tokenizer(byte_level.backend, byte_level.special_tokens, chat_template=CHATML)
    opened, closed = ours.chat([USER]), ours.chat([USER], generate=False)
    assert opened == [*closed, *ours.encode("<|im_start|>assistant\n", special=False)]
    assert ours.decode(closed, skip_special=False) == ours.render([USER], generate=False)
    assert closed[0] == ours.backend.token_to_id("<|im_start|>")


def test_bos_is_there_once(spm):
    ours = Tokenizer(spm.backend, spm.special_tokens, chat_template=BOS_CHAT)
    assert ours.chat([USER]).count(ours.bos_id) == 1
    assert ours.encode(ours.render([USER])).count(ours.bos_id) == 2, "negative control: encoding the text adds another"


def test_keys_without_value_are_absent_and_variables_arrive():
    template = "{% if messages[0].tool_calls is defined %}calls{% else %}none{% endif %}{{ enable_thinking }}"
    chat = [{"role": "assistant", "content": "x", "tool_calls": None}]
    assert render_chat(template, chat, variables={"enable_thinking": False}) == "noneFalse"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{% for m in messages %}",
        "{{ messages[0].missing.deeper }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
        "{{ 'x' + 1 }}",
    ],
)
def test_a_template_that_fails_refuses_or_breaks_out_is_a_value_error(template):
    with pytest.raises(ValueError, match="chat template does not accept"):
        render_chat(template, [USER])
    if "roles" in template:
        with pytest.raises(ValueError, match="roles must alternate"):
            render_chat(template, [USER])


@pytest.mark.parametrize(
    ("chat", "says"),
    [
        ([], "at least one message"),
        ([{"content": "no role"}], 'message 0 .*"role"'),
        ([USER, {"role": 3, "content": "x"}], 'message 1 .*"role"'),
        ([{"role": "user", "content": object()}], "JSON values only.*object"),
    ],
)
def test_a_chat_that_is_none_is_refused(chat, says):
    with pytest.raises(ValueError, match=says):
        render_chat(CHATML, chat)


def test_without_template_the_remedy_is_named(byte_level):
    with pytest.raises(ValueError, match="no chat template; give the prompt as plain text"):
        byte_level.chat([USER])
