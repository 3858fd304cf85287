"""The words of the grammars. The content words of the training, validation and test sets have
nothing in common, down to their stems: what a model learns about the first must carry over to the
others by what it knew before."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """`They SING`, `she SANG`, `it was SUNG`."""

    base: str
    past: str
    participle: str


@dataclass(frozen=True)
class Words:
    """One side of the vocabulary."""

    people: tuple[str, ...]
    acts: tuple[Verb, ...]
    """What one does alone: sing, sleep."""
    deeds: tuple[Verb, ...]
    """What one does to another: help, follow."""
    handling: tuple[Verb, ...]
    """What one does with things: buy, draw."""
    things: tuple[str, ...]
    """Single things: cup, chair."""
    traits: tuple[str, ...]
    """What a thing can be, whatever else it is: red, heavy."""
    kinds: tuple[tuple[str, tuple[str, ...]], ...]
    """A broader word and narrower ones, all in the plural: animals: dogs, horses."""
    processes: tuple[Verb, ...]
    """What happens to things: melt, rust."""
    moods: tuple[str, ...]
    """What only a person can be: hungry."""
    makes: tuple[str, ...]
    """What only a thing can be: wooden."""
    topics: tuple[str, ...]
    """What one has an opinion about."""
    praise: tuple[str, ...]
    blame: tuple[str, ...]


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _verbs(text: str) -> tuple[Verb, ...]:
    """`sing/sang/sung`; a regular verb is its base alone, and of two forms the second is both the
    past and the participle."""
    found = []
    for entry in text.split():
        base, *forms = entry.split("/")
        past = forms[0] if forms else (base + "d" if base.endswith("e") else base + "ed")
        found.append(Verb(base, past, forms[1] if len(forms) > 1 else past))
    return tuple(found)


def _kinds(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for line in text.strip().splitlines():
        broader, _, narrower = line.partition(":")
        found.append((broader.strip(), _split(narrower)))
    return tuple(found)


TRAIN = Words(
    people=_split(
        "boy woman teacher farmer doctor pilot baker soldier king nurse artist driver sailor "
        "student lawyer hunter painter poet monk guard judge clerk actor priest miner waiter thief "
        "banker engineer scientist gardener captain mayor uncle mother son"
    ),
    acts=_verbs(
        "sing/sang/sung sleep/slept dance laugh cry/cried swim/swam/swum walk pray smile jump "
        "shout wait cough speak/spoke/spoken lie/lied weep/wept retire argue kneel/knelt"
    ),
    deeds=_verbs(
        "help push follow chase kiss hire pay/paid praise warn attack save thank watch find/found "
        "call feed/fed invite ignore visit blame trust guide"
    ),
    handling=_verbs(
        "buy/bought draw/drew/drawn want sell/sold steal/stole/stolen describe collect touch "
        "photograph/photographed remember mention wash repair lift hide/hid/hidden"
    ),
    things=_split(
        "cup box chair car book hat door bag lamp shirt boat ring table coat plate phone knife "
        "ball house bridge garden road stone flag"
    ),
    traits=_split(
        "red old heavy clean wooden round cheap wet soft dark large empty cold rough broken long "
        "black famous"
    ),
    kinds=_kinds(
        """
        animals: dogs horses cows sheep goats lions tigers bears wolves cats pigs rabbits
        fruits: apples bananas pears peaches plums grapes oranges lemons cherries
        vehicles: cars trucks buses vans taxis bicycles motorcycles
        tools: hammers saws shovels axes drills
        buildings: churches hotels castles barns towers schools houses
        instruments: pianos guitars violins flutes drums trumpets
        flowers: roses tulips lilies daisies
        toys: dolls puzzles balloons
        clothes: shirts coats hats trousers skirts
        seats: chairs benches sofas stools
        snakes: cobras vipers pythons
        machines: computers printers robots engines
        desserts: brownies cookies puddings pies
        crimes: murders frauds forgeries
        sports: tennis football hockey golf
        """
    ),
    processes=_verbs("melt rust crack leak explode fade boil ignite dissolve corrode unfold creak"),
    moods=_split(
        "hungry angry tired proud lonely jealous polite generous ashamed furious bored excited "
        "lazy selfish cruel humble loyal"
    ),
    makes=_split(
        "wooden rusty hollow empty leather woolen cracked portable inflatable folded marble glass "
        "adjustable unopened disposable striped oval"
    ),
    topics=_split(
        "soup film music room story service lunch concert trip bread weather speech match lesson "
        "apartment book chapter class comedy course design documentary drink festival garden "
        "interview magazine melody menu neighborhood painting performance pizza plot program "
        "restaurant ride salad season sandwich seminar soundtrack stay steak theater translation "
        "vacation video wedding wine"
    ),
    praise=_split(
        "great lovely wonderful perfect delightful brilliant pleasant superb charming fantastic "
        "adorable astonishing awesome captivating clever comfortable decent delicious dazzling "
        "elegant exquisite favorable fine flawless graceful inspiring interesting "
        "incredible memorable phenomenal praiseworthy priceless satisfying sensational spectacular "
        "stunning thrilling touching tremendous"
    ),
    blame=_split(
        "awful horrible boring ugly disgusting poor dreadful annoying terrible stupid abysmal "
        "absurd bland clumsy cheesy confusing crude defective deplorable dreary embarrassing "
        "exhausting flawed foul frustrating ghastly gloomy gross grim horrid hopeless inadequate "
        "inferior irritating lame laughable monotonous offensive pointless revolting"
    ),
)

VALIDATION = Words(
    people=_split(
        "girl man chef queen dentist musician policeman barber prince editor carpenter professor "
        "knight maid shepherd senator plumber athlete tourist surgeon librarian merchant wizard "
        "mechanic cowboy reporter detective neighbor aunt father daughter"
    ),
    acts=_verbs(
        "talk whisper scream eat/ate/eaten yawn win/won flee/fled vote march blink snore "
        "study/studied relax resign sneeze bow complain hesitate think/thought"
    ),
    deeds=_verbs(
        "hug/hugged hit/hit see/saw/seen love despise catch/caught kill insult greet rob/robbed "
        "pull admire carry/carried accuse kick tease punish rescue arrest"
    ),
    handling=_verbs(
        "order like avoid own bring/brought choose/chose/chosen notice examine discuss "
        "break/broke/broken throw/threw/thrown borrow fix burn drop/dropped"
    ),
    things=_split(
        "bowl basket bed train letter scarf window bottle candle dress ship necklace desk jacket "
        "spoon clock mirror kettle carpet tent blanket wall"
    ),
    traits=_split(
        "blue new dirty golden square expensive dry hard bright small full hot smooth green sharp "
        "thin white beautiful"
    ),
    kinds=_kinds(
        """
        birds: eagles crows owls ducks swans hawks parrots pigeons
        insects: bees ants flies beetles wasps butterflies
        vegetables: carrots onions potatoes cabbages beans tomatoes
        weapons: swords guns rifles spears pistols
        trees: oaks pines maples elms palms
        drinks: beers wines juices
        dishes: stews salads omelettes
        metals: iron copper silver
        jewels: diamonds rubies emeralds
        vessels: canoes ferries yachts
        """
    ),
    processes=_verbs("shatter drip/dripped rot/rotted evaporate burst/burst crumble overheat"),
    moods=_split("thirsty nervous shy greedy sleepy clever curious cheerful worried grateful"),
    makes=_split("plastic golden square electric steel cotton antique ceramic printed damaged"),
    topics=_split(
        "meal movie song novel view museum breakfast party staff show lecture beach cake game"
    ),
    praise=_split(
        "good excellent amazing impressive enjoyable nice splendid marvelous outstanding terrific"
    ),
    blame=_split(
        "bad disappointing dull nasty miserable lousy pathetic tedious painful ridiculous"
    ),
)

TEST = Words(
    people=_split(
        "princess tailor butcher sheriff violinist dancer firefighter janitor cashier referee "
        "sculptor widow cousin grandmother nephew philosopher astronaut bishop emperor pirate "
        "beggar butler novelist chemist builder singer psychologist veteran lifeguard duke sister"
    ),
    acts=_verbs(
        "giggle faint dream grin/grinned apologize shiver meditate sigh limp rejoice vanish "
        "sob/sobbed wander exercise frown wink protest surrender wave"
    ),
    deeds=_verbs(
        "adore slap/slapped interview mock forgive/forgave/forgiven imitate nominate threaten "
        "bite/bit/bitten congratulate flatter capture bully/bullied comfort summon deceive tickle "
        "interrupt envy/envied"
    ),
    handling=_verbs(
        "rent purchase varnish polish destroy wrap/wrapped lose/lost hold/held inspect "
        "measure assemble replace sketch deliver weigh"
    ),
    things=_split(
        "mug drawer couch tractor magazine cap gate suitcase lantern sweater raft bracelet stove "
        "glove fork radio umbrella pillow fence statue pencil vase"
    ),
    traits=_split(
        "yellow modern light stained flat costly moist stiff pale tiny crowded warm fragile purple "
        "blunt thick grey elegant"
    ),
    kinds=_kinds(
        """
        fish: sharks trout salmon eels
        reptiles: lizards turtles crocodiles
        spices: cinnamon pepper ginger
        furniture: wardrobes cupboards dressers
        cheeses: cheddar brie mozzarella
        herbs: basil parsley thyme
        monkeys: baboons gorillas chimpanzees
        shoes: sandals boots sneakers slippers
        documents: passports invoices diplomas
        berries: strawberries raspberries blueberries
        """
    ),
    processes=_verbs("collapse deflate freeze/froze/frozen tip/tipped rattle spill split/split"),
    moods=_split("anxious brave grumpy patient sad arrogant confused ambitious pregnant honest"),
    makes=_split("rubber bronze triangular wireless aluminum velvet foldable granite torn paper"),
    topics=_split(
        "dinner play album poem hotel exhibition journey picnic hike opera sermon series coffee "
        "tour"
    ),
    praise=_split(
        "fabulous magnificent fascinating gorgeous admirable exciting remarkable sublime "
        "refreshing glorious"
    ),
    blame=_split(
        "hideous dismal appalling unbearable mediocre rotten atrocious depressing vile shabby"
    ),
)
