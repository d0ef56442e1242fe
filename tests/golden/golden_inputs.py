"""What the goldens are made from: prompts for the model and texts for the tokenizer."""

from __future__ import annotations

from collections.abc import Mapping

Message = Mapping[str, str]

LONG_STORY = """\
The ferry to Harrow Island ran twice a day in summer and once a week in winter, and Edda had \
never in her life missed the winter boat. She kept the island's only shop, a low building of \
grey stone with a blue door, and everything on its shelves had come across the water in her own \
two arms: flour, lamp oil, batteries, knitting wool, the newspapers of the week before. People \
said that she could tell the weather from the weight of a sack of sugar. That was not true, but \
she never denied it, because a shopkeeper needs a little mystery, and because the weather on \
Harrow was the only thing that anyone ever wanted to talk about.

On the ninth of December the boat did not come. Edda stood on the jetty until her hands were too \
cold to hold the lantern, and then she went home and made tea and looked at the sea through the \
back window. There were eleven people on the island that winter. There was old Brandt, who had \
kept the lighthouse before it was made automatic and still wound its clock. There were the Moir \
sisters, who had not spoken to each other since a disagreement about a goat. There was a young \
man called Tobias who counted seabirds for a university, and a family of five who had come to \
live simply and were finding it complicated. And there was the doctor, who had retired, and who \
was therefore asked about everything from toothache to the proper way to thaw a frozen pump.

By the third day without a boat the bread was gone. Edda wrote a list of what remained: forty \
tins of peaches, six kilos of rice, a wheel of cheese, two crates of onions, tea enough for a \
year, and one bottle of very good brandy that she had been saving for no particular reason. She \
carried the list from house to house. She did not ask anyone for anything. She only read it out, \
slowly, and then waited, and by the evening the shop was full. Brandt brought smoked fish. The \
Moir sisters brought eggs, each from her own hens, and set the two baskets down on the counter \
side by side without a word. Tobias brought a map of where the mussels grew. The children \
brought a drawing of a boat.

They ate together in the shop every night for two weeks. They burned driftwood in the stove and \
told each other the stories that they had been keeping for themselves. Brandt explained how the \
light had once been lit with whale oil and how his grandfather had rowed out in a storm to bring \
home a crew who spoke a language that nobody knew. The doctor confessed that he had never liked \
boats. The elder Moir sister laughed at something the younger one said, and then looked so \
surprised at herself that everyone else began to laugh as well, and after that the matter of the \
goat was never mentioned again.

When the boat finally came, on the morning of the twenty-third, the captain found all of the \
islanders waiting on the jetty. He had expected them to be hungry and angry. Instead they helped \
him tie up, asked after his engine, and handed him a basket covered with a cloth. He lifted the \
corner of the cloth, and inside it he saw"""

PLAIN_PROMPTS: Mapping[str, str] = {
    "one token": "The",
    "story": "Once upon a time, in a village at the foot of a mountain,",
    "fact": "The capital of France is",
    "list": "Five things to pack for a week by the sea:\n1.",
    "science": "Photosynthesis is the process by which",
    "python": 'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n',
    "javascript": "// Debounce a function\nexport function debounce(fn, delay) {\n  let timer = null;\n",
    "json": '{"name": "Ada Lovelace", "born": 1815, "fields": ["mathematics", "computing"], "notes": "',
    "sql": "SELECT customers.name, SUM(orders.total)\nFROM customers\n",
    "long numbers": "3.14159265358979323846264338327950288419716939937510 and 2.71828182845904523536 and",
    "digits": "The serial numbers are 00123456789, 98765432100, 55501234567 and",
    "emoji": "Weather today: ☀️🌧️🌈 Mood: 😀😂🥲 Family: 👨‍👩‍👧‍👦 Flag: 🇯🇵 Food:",
    "german": "Über die Brücke fährt jeden Morgen ein Zug, und",
    "chinese": "很久很久以前，在一座高山的脚下，",
    "arabic": "في صباح يوم جميل ذهب الولد إلى",
    "russian": "Однажды весной, в час небывало жаркого заката,",
    "whitespace": "a\n\n\n   b\t\tc      d\n        e\n",
    "long": LONG_STORY,
}

CHAT_PROMPTS: Mapping[str, tuple[Message, ...]] = {
    "chat short": ({"role": "user", "content": "What is the capital of Japan?"},),
    "chat system": (
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ),
    "chat turns": (
        {"role": "user", "content": "My name is Mira and I keep bees."},
        {"role": "assistant", "content": "Nice to meet you, Mira! How many hives do you have?"},
        {"role": "user", "content": "Twelve. What was my name again, and how many hives?"},
    ),
    "chat code": ({"role": "user", "content": "Write a Python function that reverses a linked list."},),
    "chat arithmetic": ({"role": "user", "content": "What is 123456789 + 987654321? Show your steps."},),
    "chat emoji": ({"role": "user", "content": "Explain 🐍 and 🦀 to a programmer, s'il vous plaît."},),
}

TOKENIZER_TEXTS: tuple[str, ...] = (
    "",
    " ",
    "Hello, world!",
    " Hello",
    "hello  world   with    runs",
    "\n",
    "\n\n\n",
    "\t\ttabs\tand spaces  \n",
    "trailing spaces   ",
    "\r\nwindows\r\nlines\r\n",
    "It's we're I'll you've he'd I'm can't",
    "IT'S WE'RE I'LL",
    "it\u2019s a typographer\u2019s apostrophe",
    "0",
    "1234567890",
    "3.14159265358979",
    "1,000,000.00 USD",
    " 42 is 4 2",
    "v1.2.3-rc4+build567",
    "2024-02-29T23:59:60Z",
    "0x1F 0b1010 1e-9",
    "\u00bd \u00b2 \u2163 \u0664\u0665\u0666 \u096a\u096b",
    "x\u00b2+y\u00b3=z\u2074",
    "caf\u00e9 na\u00efve \u00fcber",
    "cafe\u0301 decomposed",
    "\u00c5\u212b A\u030a",
    "Stra\u00dfe GRO\u1e9eE",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3067\u3059\u3002",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    "\u0393\u03b5\u03b9\u03b1 \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627",
    "mixed \u202bRTL\u202c and \u200eLTR\u200f marks",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family",
    "\U0001f1ef\U0001f1f5\U0001f1eb\U0001f1f7 flags",
    "\u2764\ufe0f\U0001f44d\U0001f3fd skin tones",
    "\u2600 \u2602 \u266b \u2192 \u2260 \u221e",
    "\U00010348 \U0001d4d0 \U000e0041 astral",
    "\u00a0no-break\u2003em\u200bzero\u3000ideographic",
    "\ufeffbyte order mark",
    "\x00\x01\x1f\x7f control characters",
    "\ufffd replacement",
    "def f(x):\n    return x ** 2  # square\n",
    "for (int i = 0; i < 10; ++i) { sum += a[i]; }",
    "https://example.org/path?q=1&r=%20#frag",
    '{"key": [1, 2.5, null, true], "s": "\\u00e9"}',
    '<p class="a">text &amp; more</p>',
    "SCREAMING_SNAKE camelCase kebab-case",
    "!!!???...---___***",
    "a" * 50,
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "text<|endoftext|>text",
    "<|im_start|><|im_end|><|endoftext|>",
    "<|im_start |> <| im_end|> <|im_end|",
)
