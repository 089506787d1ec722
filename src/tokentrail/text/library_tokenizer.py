"""`tokenizer.json` as it is: the `tokenizers` library splits text, as it did when the model was trained."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from tokentrail.checkpoints import MAX_TOKENIZER_BYTES, TokenizerSource, end_token_ids, read_bytes
from tokentrail.protocol import InvalidRequest, ModelFileError
from tokentrail.text.library import build, encode
from tokentrail.text.token_decoders import TokenDecoder
from tokentrail.text.tokenizer import Tokenizer
from tokentrail.text.tokenizer_limits import MAX_ADDED_TOKENS, check_limits
from tokentrail.text.unicode import without_surrogates

if TYPE_CHECKING:
    import tokenizers


class LibraryTokenizer(Tokenizer):
    """Ids equal those of `tokenizers` and `transformers` on the same folder."""

    def __init__(
        self,
        source: TokenizerSource,
        *,
        vocab_size: int | None = None,
        eos_token_ids: Sequence[int] | None = None,
        origin: str = "the model's tokenizer",
    ) -> None:
        """`vocab_size`: rows of the model's embedding, which can be more than there are tokens; `origin` names the
        folder in errors. Raises `ModelFileError` for a tokenizer that cannot be built."""
        self._source = source
        self._special: set[int]
        self._tokenizer = self._load()
        count = self._tokenizer.get_vocab_size(with_added_tokens=False)
        super().__init__(len(source.tokens) if vocab_size is None else vocab_size)
        if count > self.vocab_size:
            raise ModelFileError(
                f"{origin}: the tokenizer has {count} tokens, but the model only {self.vocab_size}. "
                "Use the tokenizer that belongs to the model."
            )
        check_limits(self._tokenizer, origin)
        decoder = self._tokenizer.decoder
        state = None if decoder is None else msgspec.json.decode(decoder.__getstate__())
        self._decoder = build(lambda: TokenDecoder(state, origin), origin)
        self.bos_token_id = source.bos_token_id
        self.eos_token_ids = tuple(end_token_ids(source) if eos_token_ids is None else eos_token_ids)
        around = self.encode("")
        self.add_bos = bool(around) and around[0] == self.bos_token_id
        self.add_eos = bool(around) and around[-1] == source.eos_token_id

    def _load(self) -> tokenizers.Tokenizer:
        # Imported here: only processes that handle text pay for it.
        from tokenizers import AddedToken, Tokenizer

        (path,) = self._source.files.values()
        data = read_bytes(path, MAX_TOKENIZER_BYTES)

        added = self._source.added_tokens
        if len(added) > MAX_ADDED_TOKENS:
            raise ModelFileError(
                f"{path}: the tokenizer has {len(added)} added tokens; at most {MAX_ADDED_TOKENS} are possible. "
                "Use the tokenizer files that the model's makers published."
            )

        def load() -> Tokenizer:
            tokenizer = Tokenizer.from_buffer(data)
            tokenizer.no_truncation()
            tokenizer.no_padding()
            # As the library decodes: special are those whose text was ever said to be.
            texts = _special_texts(tokenizer)
            tokenizer.add_tokens(
                [
                    AddedToken(
                        token.text,
                        special=token.special,
                        normalized=token.normalized,
                        single_word=token.single_word,
                        lstrip=token.lstrip,
                        rstrip=token.rstrip,
                    )
                    for token in added
                ]
            )
            texts |= _special_texts(tokenizer)
            decoded = tokenizer.get_added_tokens_decoder()
            self._special = {id for id in decoded if tokenizer.id_to_token(id) in texts}
            return tokenizer

        return build(load, str(path))

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """The same, blind to special tokens. Seldom needed, and a setting of the whole object."""
        tokenizer = self._load()
        tokenizer.encode_special_tokens = True
        return tokenizer

    @cached_property
    def longest_token(self) -> int:
        return max(map(len, self._tokenizer.get_vocab()), default=0)

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        tokenizer = self._tokenizer if parse_special else self._plain
        ids = encode(tokenizer, without_surrogates(text), add_special_tokens=add_special_tokens)
        if ids and max(ids) >= self.vocab_size:
            token = tokenizer.id_to_token(max(ids))
            raise InvalidRequest(f"The text contains {token!r:.80}, which this model does not know.")
        return ids

    def _token_bytes(self, id: int) -> bytes:
        token = self._tokenizer.id_to_token(id)
        return b"" if token is None else self._decoder.bytes_of(token)

    def _brings_space(self, id: int) -> bool:
        return self._decoder.brings_space(self.id_to_token(id))

    def id_to_token(self, id: int) -> str:
        self._check(id)
        return self._tokenizer.id_to_token(id) or ""

    def token_to_id(self, token: str) -> int | None:
        id = self._tokenizer.token_to_id(token)
        return id if id is not None and id < self.vocab_size else None

    def is_special(self, id: int) -> bool:
        self._check(id)
        return id in self._special


def _special_texts(tokenizer: tokenizers.Tokenizer) -> set[str]:
    return {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
