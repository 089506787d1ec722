"""How each byte-level BPE family cuts text into words before merging, by the name GGUF gives the family.

GGUF stores a name (`tokenizer.ggml.pre`), not the rule. A rule is a list of patterns applied one after the
other: each cuts every piece so far into its matches and what lies between them. The patterns are those of
the models' own tokenizer.json files; they are matched by the regular expressions of the `tokenizers` library
(Oniguruma), as they were when the models were trained.
"""

from __future__ import annotations

from typing import NamedTuple


class PreTokenizer(NamedTuple):
    """The rule of one family, and the defaults that come with its name."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A word that is in the vocabulary is one token, whatever the merges would make of it."""
    add_bos: bool = False
    """Whether a prompt starts with the beginning-of-sequence token when the file does not say."""
    byte_level: bool = True
    """Words are spelled in bytes, with GPT-2's alphabet; otherwise in characters, and spaces as U+2581."""


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+@|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*@"  # @: an ending
)
_PATHS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_TEKKEN = rf"{_CASED_WORDS.replace('@', '')}|\p{{N}}|{_PATHS}"
_GPT4O = rf"{_CASED_WORDS.replace('@', _CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{_PATHS}"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3 = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)


def _character_class(ranges: str) -> str:
    """`41-5a b5` → `A-Zµ`."""
    return "".join("-".join(chr(int(end, 16)) for end in item.split("-")) for item in ranges.split())


# Cased letters, as the model's authors list them. In hexadecimal, because several look alike, and some would
# not survive Unicode normalization.
_DEEPSEEK_LETTERS = _character_class(
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a "
    "38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf "
    "1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d "
    "1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 "
    "1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f "
    "2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f "
    "a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 "
    "104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"
)
_HAN_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_PUNCTUATION = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

_LINES = r"[^\n]+|\n+"
# The models' own pattern names Han characters apart, and takes them out of all other words.
_KIMI_K2 = (
    r"\p{Han}+|"
    + _CASED_WORDS.replace(_UPPER, rf"[{_UPPER}&&[^\p{{Han}}]]")
    .replace(_LOWER, rf"[{_LOWER}&&[^\p{{Han}}]]")
    .replace("@", _CONTRACTIONS + "?")
    + rf"|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
)
# Digits in threes, counted from the right.
_AFMOE_DIGITS = r"\p{Nd}{1,3}(?=(?:\p{Nd}{3})*(?!\p{Nd}))"
_AFMOE_SCRIPTS = (
    "["
    + _character_class(
        "4e00-9fff 3400-4dbf f900-faff 3040-309f 30a0-30ff ff65-ff9f 2f00-2fdf e00-e7f e80-eff 1780-17ff "
        "1000-109f aa60-aa7f a9e0-a9ff ac00-d7af 1100-11ff"
    )
    + "]+"
)
_SPARK = _DEEPSEEK3.replace(rf"[\r\n]*|{_SPACES}", r"|[\r\n]|\s+(?!\S)|\s+")
_YOUTU_SCRIPTS = "|".join(
    f"[{_character_class(ranges)}]+"
    for ranges in (
        "ac00-d7a3 3131-318e",
        "ff01 2026 201c 201d 2018 2019 2014 ff1a ff1b ff0c 3001-303f fe30-fe4f",
        "3105-312f",
        "4e00-9fa5 3040-309f 30a0-30ff",
    )
)
_JAIS2_SPACES = (
    r"\s*[\r\n]+"
    + "".join(rf"|\s{{{count}}}(?!\S)" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
    + r"|\s"
)

_DIGITS_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_PLAIN_GPT2 = PreTokenizer((_GPT2,))
_LLAMA3_RULE = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_RULE = PreTokenizer((_QWEN2,))
_DEEPSEEK3_RULE = PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3))
_BAILING_RULE = PreTokenizer(
    (rf"'(?i:[sdmt]|ll|ve|re)|{_WORDS}|\p{{N}}|{_SYMBOLS}|\s*[\r\n]|\s+(?!\S)|\s+",),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    # The rule for files from before names were stored.
    "": (_DEFAULT := PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))),
    "default": _DEFAULT,
    **dict.fromkeys(
        (
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
        ),
        _PLAIN_GPT2,
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        _DIGITS_GPT2,
    ),
    **dict.fromkeys(
        (
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ),
        _LLAMA3_RULE,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(
        (
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "megrez",
            "kormo",
            "hunyuan",
            "solar-open",
            "grok-2",
            "f2llmv2",
        ),
        _QWEN2_RULE,
    ),
    "qwen35": PreTokenizer((_QWEN35,)),
    "minicpm5": PreTokenizer(
        (r"\p{N}{1,3}", rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}+|{_SYMBOLS}|{_SPACES}"), ignore_merges=True
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            rf"\s?{_DEEPSEEK_PUNCTUATION}",
            r"\s+$",
            _HAN_HANGUL,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3_RULE),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), PreTokenizer((_BLOOM,))),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"), PreTokenizer((_GPT4O,))),
    "granite-embed-multi-97m": PreTokenizer((_GPT4O,), ignore_merges=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O))),
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(?:\d{3})+(?!\d))")),
    "kimi-k2": PreTokenizer((_KIMI_K2,)),
    "afmoe": PreTokenizer((_AFMOE_DIGITS, _AFMOE_SCRIPTS, _DEEPSEEK3)),
    "laguna": PreTokenizer((_LINES, _QWEN2)),
    "ufakzeka": PreTokenizer((_QWEN2.removeprefix(_CONTRACTIONS + "|"),)),
    "spark2_5": PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _SPARK, r"\p{N}")),
    "youtu": PreTokenizer((_YOUTU_SCRIPTS, _GPT4O.replace(r"\p{N}{1,3}", r"\p{N}")), ignore_merges=True),
    "jais-2": PreTokenizer((_LLAMA3.replace(_SPACES, _JAIS2_SPACES),)),
    "chameleon": PreTokenizer(
        (
            r"<sentinel:[0-9]+>",
            r"IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    **dict.fromkeys(
        ("gemma4", "granite-embed-multi-311m"), PreTokenizer((_LINES,), add_bos=True, byte_level=False)
    ),
    "sarvam-moe": PreTokenizer((_LINES,), byte_level=False),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING_RULE),
    "seed-coder": PreTokenizer(
        (rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",),
    ),
    "exaone-moe": PreTokenizer(
        (
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
}
"""By `tokenizer.ggml.pre`."""
