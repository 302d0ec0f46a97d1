"""A small random model with a tokenizer in a folder, and clients that come back to their streams."""

import contextlib
import http.client
import json
import time
from dataclasses import dataclass, field

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


def asks(count, seed=0):
    """Make requests of all lengths, greedy and sampled."""
    made = []
    for at in range(count):
        length = 1 + (at * 37 + seed) % 180
        sampling = GREEDY if at % 2 else Sampling(temperature=0.9, top_p=0.95, seed=at)
        made.append(Ask(prompt(length, seed=at), sampling, outputs=4 + at * 5 % 29))
    return made


def expected(reference: Reference, ask):
    """Give text and finish reason as an unsplit run of transformers has them."""
    tokens = list(reference(ask).tokens)
    if EOS in tokens:
        return text_of(tokens[: tokens.index(EOS)]), "stop"
    return text_of(tokens), "length"


@dataclass
class Client:
    """One request and what came of it."""

    name: str
    ask: Ask
    host: str
    cancel_after: int | None = None
    text: str = ""
    events: int = 0
    finish: str | None = None
    acknowledged: bool = False
    reattached: int = 0
    resubmitted: int = 0
    last_id: str | None = None
    faults: list[str] = field(default_factory=list)

    def body(self):
        """Say what is asked for."""
        sampling = self.ask.sampling
        return {
            "model": "tiny",
            "prompt": self.ask.tokens,
            "max_tokens": self.ask.outputs,
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
                connection.request("GET", f"/v1/requests/{self.name}", headers=headers)
            else:
                connection.request("POST", "/v1/completions", json.dumps(self.body()), headers)
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
            self.text += choice["text"]
            self.finish = choice["finish_reason"] or self.finish
