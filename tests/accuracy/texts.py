"""Ten texts of different kinds, and a question for the chat template. Written for this project."""

from __future__ import annotations

from tokentrail.checkpoints import Checkpoint
from tokentrail.text import ChatTemplate

TEXTS: dict[str, str] = {
    "prose": (
        "The ferry left the harbour a little after six, when the gulls had already given up on the fishing boats and "
        "the first lamps were lit along the quay. Anna stood at the rail with her collar turned up. She had told her "
        "brother that she would be back before winter, and she had meant it; but the island looked smaller with every "
        "minute, and the promise with it. Behind her somebody laughed, a door banged, and the smell of coffee came up "
        "from the cabin. She thought of the letter in her pocket, which she had read so often that the folds had begun "
        "to tear, and decided that she would not read it again until they had passed the lighthouse."
    ),
    "science": (
        "When a star like the Sun runs out of hydrogen in its core, the core contracts and heats up while the outer "
        "layers expand and cool. The star becomes a red giant. Helium then begins to fuse into carbon and oxygen. "
        "Because the mass of such a star is too low for further fusion, its outer layers are finally blown away as a "
        "planetary nebula, and what remains is a white dwarf: an object with about half the mass of the Sun in a "
        "volume close to that of the Earth. It no longer produces energy, and cools slowly over billions of years."
    ),
    "code": (
        "def merge_sorted(a: list[int], b: list[int]) -> list[int]:\n"
        '    """Merge two sorted lists into one sorted list."""\n'
        "    result = []\n"
        "    i = j = 0\n"
        "    while i < len(a) and j < len(b):\n"
        "        if a[i] <= b[j]:\n"
        "            result.append(a[i])\n"
        "            i += 1\n"
        "        else:\n"
        "            result.append(b[j])\n"
        "            j += 1\n"
        "    result.extend(a[i:])\n"
        "    result.extend(b[j:])\n"
        "    return result\n\n\n"
        "assert merge_sorted([1, 4, 7], [2, 3, 9]) == [1, 2, 3, 4, 7, 9]\n"
    ),
    "chinese": (
        "春天来了，公园里的樱花开了。小明和妹妹一起去散步，他们看见很多老人在湖边打太极拳，孩子们在草地上放风筝。"
        "妹妹问：“为什么风筝能飞那么高？”小明想了想，回答说：“因为有风，也因为有一根线牵着它。”"
        "中午，他们在一家小店里吃了面条，然后坐公共汽车回家。"
    ),
    "list": (
        "Packing list for a weekend in the mountains:\n\n"
        "1. Warm jacket and a waterproof layer\n"
        "2. Hiking boots (worn in!)\n"
        "3. Two pairs of wool socks\n"
        "4. Map, compass, and a charged phone\n"
        "5. First-aid kit:\n"
        "   - plasters\n"
        "   - painkillers\n"
        "   - a triangular bandage\n"
        "6. Water bottle, at least 1.5 litres per person\n"
        "7. Bread, cheese, apples, chocolate\n"
        "8. Head torch with spare batteries\n\n"
        "Leave the laptop at home.\n"
    ),
    "dialogue": (
        '"You are late," said the clerk without looking up.\n'
        '"The train stood still for an hour," said Tom. "Is it still possible to register?"\n'
        '"That depends. Do you have the form?"\n'
        '"Which form?"\n'
        '"The blue one. Everybody needs the blue one."\n'
        'Tom searched his bag. "I have a green one, a yellow one, and something from the dentist."\n'
        'The clerk sighed, put down his pen and, for the first time, smiled. "Give me the one from the dentist," he '
        'said. "It is almost blue."'
    ),
    "emoji": (
        "Good morning everyone! ☀️😀 Today is the big day: our little bakery 🥐🍞 opens at 8:00! We have fresh "
        "croissants, hot coffee ☕ and — for the first time — vegan chocolate cake 🍫🎂. First ten guests get a free "
        "cookie 🍪🙌. Can't wait to see you all ❤️❤️❤️ #bakery #opening #yum 👩‍🍳"
    ),
    "chat": (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHow do I boil an egg?<|im_end|>\n"
        "<|im_start|>assistant\nPlace the egg in a pot and cover it with cold water. Bring the water to a boil, then "
        "turn off the heat and cover the pot. Let the egg sit for 10 to 12 minutes, and cool it in ice water before "
        "you peel it.<|im_end|>\n"
        "<|im_start|>user\nAnd if I like it soft?<|im_end|>\n"
        "<|im_start|>assistant\nLet it sit for only 4 to 6 minutes.<|im_end|>\n"
    ),
    "numbers": (
        '{"station": "Nordkap", "date": "2023-11-05", "readings": [\n'
        '  {"hour": 0, "temperature": -2.5, "wind": 11.2},\n'
        '  {"hour": 6, "temperature": -3.1, "wind": 12.8},\n'
        '  {"hour": 12, "temperature": -1.0, "wind": 9.4},\n'
        '  {"hour": 18, "temperature": -2.2, "wind": 10.1}\n'
        '], "unit": {"temperature": "°C", "wind": "m/s"}}\n\n'
        "The mean temperature was (-2.5 - 3.1 - 1.0 - 2.2) / 4 = -8.8 / 4 = -2.2 °C.\n"
    ),
    "languages": (
        "Der Zug nach Hamburg fährt heute von Gleis sieben ab. Le petit déjeuner est servi de sept heures à dix "
        "heures dans la salle à manger. ¿Dónde está la estación de autobuses más cercana? Il mercato apre ogni "
        "mattina alle otto, tranne la domenica. Сегодня утром шёл дождь, но к обеду выглянуло солнце. "
        "今日はとても暑いですね。 Tack så mycket för hjälpen!"
    ),
}

QUESTION = "Tell me the capital of France."
"""Not "What is …?": there the model in float32 prefers its first word to the next by 0.08 only, which no rounding of
activations has to respect. Here its narrowest choice up to the capital's name is decided by 0.7."""


def prompt_of(checkpoint: Checkpoint) -> str:
    """The question in the model's own chat template, ready for the answer."""
    return ChatTemplate(checkpoint.chat_template).render([{"role": "user", "content": QUESTION}])
