"""Which tokens a grammar allows next, for one tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokentrail.protocol import InvalidRequest
from tokentrail.text.continuing import ContinuedText
from tokentrail.text.grammar.limits import parser_limits
from tokentrail.text.grammar.marks import marks_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from llguidance._lib import LLExecutor, LLMatcher

    from tokentrail.text.tokenizer import Tokenizer

_DEAD_END = "NoExtension"
"""In llguidance's words for a place from where no token leads on."""


class GrammarTokenizer:
    """A tokenizer as llguidance needs it. Building it takes a tenth of a second or more, during which nothing else of
    the process runs: once a process, and only where a grammar is used.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size`: of the model's logits. Ids that the tokenizer does not know are never allowed."""
        from llguidance._lib import LLTokenizer

        self.vocab_size = vocab_size
        self._tokenizer = LLTokenizer(
            _Vocabulary(tokenizer, vocab_size),  # type: ignore[arg-type]
            n_vocab=vocab_size,
            eos_token=list(tokenizer.eos_token_ids),
        )

    @property
    def mask_words(self) -> int:
        """Words of 32 bits in a mask."""
        return -(-self.vocab_size // 32)

    def compile(self, grammar: str) -> Matcher:
        """A matcher at the start of `grammar` (`build_grammar`). Raises `InvalidRequest` if it cannot be used, or
        allows nothing. Releases the GIL while it works.
        """
        from llguidance._lib import LLMatcher

        try:
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=parser_limits())
            # Copies keep what the first mask took to work out.
            matcher.compute_bitmask()
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            raise InvalidRequest("The grammar cannot be used: it is too complex.") from None
        if matcher.is_error():
            if _DEAD_END in matcher.get_error():
                raise InvalidRequest("The grammar cannot be used: there is no text that it allows.")
            problem = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())[:300]
            raise InvalidRequest(f"The grammar cannot be used: {problem}.")
        return Matcher(matcher)


class _Vocabulary:
    """What llguidance asks of a tokenizer. Its name for this is TokenizerWrapper."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        known = range(min(tokenizer.vocab_size, size))
        self.eos_token_id = tokenizer.eos_token_ids[0] if tokenizer.eos_token_ids else 0
        self.bos_token_id = tokenizer.bos_token_id
        special = {id for id in known if tokenizer.is_special(id)} | set(marks_of(tokenizer).values())
        self.special_token_ids = sorted(special)
        self._special = special
        self.tokens = [tokenizer.token_bytes(id) for id in known] + [b""] * (size - len(known))
        self._text = ContinuedText(tokenizer)

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join([self.tokens[id] for id in ids])

    def __call__(self, data: bytes | str) -> list[int]:
        """The tokens that the model would most likely write `data` with, as far as it can write it."""
        data = data.encode() if isinstance(data, str) else data
        ids = self._text.encode(data.decode("utf-8", "replace"))
        # Normalization or missing bytes may have changed the text.
        while ids and not data.startswith(self._bytes(ids)):
            ids.pop()
        # A mark that is written out in a text is text.
        plain = next((at for at, id in enumerate(ids) if id in self._special), len(ids))
        return ids[:plain]


class Matcher:
    """One answer on its way through a grammar. Depends on the grammar and the tokens consumed, and on nothing else."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def copy(self) -> Matcher:
        """Another answer at the same place."""
        return Matcher(self._matcher.deep_copy())

    def consume(self, token: int) -> bool:
        """Go on by a token. False if the grammar does not allow it, and nothing has changed."""
        return bool(self._matcher.try_consume_tokens([token]))

    @property
    def finished(self) -> bool:
        """The answer is whole, and nothing can follow."""
        return self._matcher.is_stopped()

    @property
    def accepting(self) -> bool:
        """The answer is whole, though more may follow."""
        return self._matcher.is_accepting()

    @property
    def too_complex(self) -> bool:
        """A limit was reached: what may follow cannot be said any more."""
        return self._matcher.is_error() and _DEAD_END not in self._matcher.get_error()

    def forced(self) -> list[int]:
        """The next tokens as far as each is the only one that the mask leaves; often none."""
        return self._matcher.compute_ff_tokens()

    def count_allowed(self, tokens: list[int]) -> int:
        """How many of `tokens`, one after the other, the grammar allows next."""
        return self._matcher.validate_tokens(tokens)


class MaskWriter:
    """Writes masks for many matchers. Releases the GIL while it works."""

    def __init__(self, threads: int) -> None:
        from llguidance._lib import LLExecutor

        self._executor: LLExecutor = LLExecutor(threads)

    def write(self, masks: npt.NDArray[np.uint32], wanted: Sequence[tuple[Matcher, int, list[int]]]) -> None:
        """`masks` [rows, words]: bit t % 32 of word t // 32 is set where token t may come next. Each of `wanted` is a
        matcher, its row, and tokens that are guessed to follow: for each of these, as far as they are allowed, the
        next row tells what may come after it. The matchers stay where they are.
        """
        rows, words = masks.shape
        plain = [(matcher._matcher, row) for matcher, row, guessed in wanted if not guessed]
        guessing = [(matcher._matcher, row, guessed) for matcher, row, guessed in wanted if guessed]
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, masks.ctypes.data, words * 4, rows)
        if guessing:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(
                guessing, masks.ctypes.data, words * 4, rows
            )
