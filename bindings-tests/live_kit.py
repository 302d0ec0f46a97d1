"""A small random model with a tokenizer in a folder, and clients that come back to their streams."""

import contextlib
import http.client
import json
import time
from dataclasses import dataclass, field, replace

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine_pair import Ask, Reference, prompt, tiny
from splitcore.engine import GREEDY, Sampling

EOS = 7
LIMIT_S = 300

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


def save(folder):
    """Write a model and a tokenizer whose tokens are words, so that a text tells its tokens."""
    _, plain = tiny()
    plain.save_pretrained(folder)
    # The model in hand goes on without an end, so that its run tells what would come behind it.
    for name in ["config.json", "generation_config.json"]:
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": EOS}))
    words = ["user", "assistant", "system", *(f"w{token}" for token in range(3, 512))]
    words[EOS] = "</s>"
    model = models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="w3")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return plain


def text_of(tokens):
    """Spell tokens as the tokenizer does."""
    words = ["user", "assistant", "system", *(f"w{token}" for token in range(3, 512))]
    return " ".join(words[token] for token in tokens)


@dataclass
class Wanted(Ask):
    """A request as a client makes it: with several choices, a text that ends them, or as a chat."""

    choices: int = 1
    stop: str | None = None
    chat: bool = False


def asks(count, seed=0):
    """Make requests of all lengths, greedy and sampled; one in ten has several choices, with and without stops."""
    made = []
    for at in range(count):
        length = 1 + (at * 37 + seed) % 180
        sampling = GREEDY if at % 2 else Sampling(temperature=0.9, top_p=0.95, seed=at)
        ask = Wanted(prompt(length, seed=at), sampling, outputs=4 + at * 5 % 29)
        if at % 10 in {4, 7}:
            ask.choices = 1 + at // 10 % 4
            ask.stop = " w4" if at % 3 == 0 else None
        if at % 10 == 7:
            # As the template renders it; no word of it is an end.
            ask.chat, ask.tokens = True, [0, *(token if token != EOS else 8 for token in ask.tokens), 1]
        made.append(ask)
    return made


def seed_of(seed, choice):
    """Give the seed of a choice: the request's own for the first."""
    if choice == 0:
        return seed
    mask = (1 << 64) - 1
    word = (seed + choice * 0x9E3779B97F4A7C15) & mask
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & mask
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & mask
    return word ^ (word >> 31)


def expected(reference: Reference, ask):
    """Give texts and finish reasons of all choices, as unsplit runs of transformers have them."""
    return [_expected(reference, ask, choice) for choice in range(ask.choices)]


def _expected(reference, ask, choice):
    sampling = ask.sampling
    if sampling.temperature > 0:
        sampling = replace(sampling, seed=seed_of(sampling.seed, choice))
    tokens = list(reference(Ask(ask.tokens, sampling, ask.outputs)).tokens)
    finish = "length"
    if EOS in tokens:
        tokens, finish = tokens[: tokens.index(EOS)], "stop"
    # It goes on behind the prompt, so there is a space in front of its first word.
    text = "".join(f" {word}" for word in text_of(tokens).split())
    if ask.stop is not None and ask.stop in text:
        text, finish = text[: text.index(ask.stop)], "stop"
    return text.strip(), finish


@dataclass
class Client:
    """One request and what came of it."""

    name: str
    ask: Ask
    host: str
    cancel_after: int | None = None
    texts: list[str] = field(default_factory=list)
    finishes: list[str | None] = field(default_factory=list)
    events: int = 0
    finish: str | None = None
    acknowledged: bool = False
    reattached: int = 0
    resubmitted: int = 0
    last_id: str | None = None
    faults: list[str] = field(default_factory=list)

    def body(self):
        """Say what is asked for."""
        sampling, ask = self.ask.sampling, self.ask
        said = [{"role": "user", "content": text_of(ask.tokens[1:-1])}]
        return {
            "model": "tiny",
            **({"messages": said} if ask.chat else {"prompt": ask.tokens}),
            "n": ask.choices,
            "stop": ask.stop,
            "max_tokens": ask.outputs,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stream": True,
        }

    def run(self, heard=lambda: None):
        """Stream it to its end, coming back as often as the connection breaks."""
        deadline = time.monotonic() + LIMIT_S
        while self.finish is None:
            if time.monotonic() > deadline:
                self.faults.append("time is up")
                return
            try:
                done = self.attempt(heard)
            except (OSError, http.client.HTTPException):
                done = False
            if done:
                return
            time.sleep(0.05)

    def attempt(self, heard):
        """Connect once; returns whether there is nothing more to do."""
        with contextlib.closing(http.client.HTTPConnection(self.host, timeout=LIMIT_S)) as connection:
            headers = {"x-request-id": self.name, "content-type": "application/json"}
            if self.acknowledged:
                if self.last_id is not None:
                    headers["last-event-id"] = self.last_id
                else:
                    self.forget()
                connection.request("GET", f"/v1/requests/{self.name}", headers=headers)
            else:
                self.forget()
                path = "/v1/chat/completions" if self.ask.chat else "/v1/completions"
                connection.request("POST", path, json.dumps(self.body()), headers)
            answer = connection.getresponse()
            if answer.status in {429, 503}:
                answer.read()
                return False
            if answer.status == http.HTTPStatus.CONFLICT and not self.acknowledged:
                # The first try was taken after all.
                answer.read()
                self.acknowledged, self.resubmitted = True, self.resubmitted + 1
                return False
            if answer.status != http.HTTPStatus.OK:
                self.faults.append(f"{answer.status}: {answer.read()!r}")
                return True
            self.reattached += self.acknowledged
            self.acknowledged = True
            return self.read(answer, heard)

    def forget(self):
        """Begin with nothing: all of it is told again."""
        self.texts, self.finishes = [""] * self.ask.choices, [None] * self.ask.choices

    def read(self, answer, heard):
        """Take events as they come."""
        event_id = None
        while True:
            line = answer.readline()
            if not line.endswith(b"\n"):
                return False
            line = line.decode().rstrip("\n")
            if line.startswith("id:"):
                event_id = line[3:].strip()
            elif line.startswith("data:"):
                data = line[5:].strip()
                if data == "[DONE]":
                    return self.finish is not None
                self.take(json.loads(data))
                self.last_id = event_id if event_id is not None else self.last_id
                heard()
                if self.cancel_after is not None and self.events >= self.cancel_after:
                    self.finish = self.finish or "cancelled"
                    return True

    def take(self, chunk):
        """Take one event."""
        if "error" in chunk:
            self.faults.append(json.dumps(chunk))
            self.finish = "error"
            return
        for choice in chunk["choices"]:
            self.events += 1
            at = choice["index"]
            self.texts[at] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            self.finishes[at] = choice["finish_reason"] or self.finishes[at]
        if all(self.finishes):
            self.finish = self.finishes[0]
