"""Roles: ids by meaning, found once."""

import pytest
from transformers import Qwen2Tokenizer

from voidpad.errors import RoleError
from voidpad.files import read_json
from voidpad.models.families import DREAM, FAMILIES
from voidpad.models.families.dream import AUTHORS_RAINBOW
from voidpad.roles import Roles, build, resolve

DREAM_ROWS = 152064


@pytest.fixture(scope="module")
def dream(data_dir):
    folder = data_dir / "hub" / "dream-7b-instruct"
    tokenizer = Qwen2Tokenizer.from_pretrained(str(folder))
    return tokenizer, resolve(tokenizer, read_json(folder / "config.json"), rows=DREAM_ROWS)


class Named:
    """A tokenizer that only has names, for releases whose tokenizer.json is not at hand."""

    mask_token_id = None

    def __init__(self, names: dict[str, int], eos: int) -> None:
        self.names, self.eos_token_id = names, eos

    def get_vocab(self) -> dict[str, int]:
        return self.names

    def __len__(self) -> int:
        return len(self.names)

    def add_tokens(self, names, special_tokens):
        """No row is to spare."""

    def convert_tokens_to_ids(self, names):
        return []


def test_eos_is_always_an_end():
    assert Roles(mask=0, eos=1).ends == (1,)
    assert Roles(mask=0, eos=1, ends=(5,)).ends == (1, 5)
    assert Roles(mask=0, eos=1, ends=(5, 1)).ends == (5, 1)


@pytest.mark.parametrize("clash", [{"void": 0}, {"void": 1}, {"rainbow": (4, 1)}, {"eos": 0}])
def test_roles_do_not_overlap(clash):
    with pytest.raises(RoleError, match="roles overlap"):
        Roles(**{"mask": 0, "eos": 1, **clash})


def test_ids_by_name_without_repeats():
    roles = Roles(mask=0, eos=1, ends=(1, 2), void=4, rainbow=(4, 5))
    assert roles.ids(["rainbow", "void", 9, "ends"]) == (4, 5, 9, 1, 2)
    assert roles.all() == {0, 1, 2, 4, 5}


def test_absent_and_unknown_roles_are_named():
    roles = Roles(mask=0, eos=1)
    for name in ("void", "pad"):
        with pytest.raises(RoleError, match=f"role '{name}'"):
            roles.ids([name])


def test_llada_takes_reserved_entries(data_dir):
    folder = data_dir / "hub" / "llada-8b-instruct"
    added = read_json(folder / "tokenizer_config.json")["added_tokens_decoder"]
    names = {token["content"]: int(i) for i, token in added.items()}
    roles = resolve(Named(names, eos=126081), read_json(folder / "config.json"), rows=126464)
    assert (roles.mask, roles.eos, roles.void) == (126336, 126081, 126084)
    assert roles.rainbow == tuple(range(126084, 126091))
    assert roles.ends == (126081, 126348)


@pytest.mark.parametrize(
    ("name", "ids"),
    [("<|pad_{}|>", [*range(100, 107)]), ("<pad_{}>", AUTHORS_RAINBOW)],
    ids=["llada", "dream"],
)
def test_the_authors_names_are_read_in_the_order_of_their_numbers(name, ids):
    names = {name.format(n): token for n, token in [(10, 99), *reversed(list(enumerate(ids)))]} | {
        "<|mdm_mask|>": 9
    }
    roles = resolve(Named(names, eos=1), {}, rows=DREAM_ROWS)
    assert (roles.mask, roles.void, roles.rainbow) == (9, ids[0], tuple(ids))
    assert roles.ends == (1,)  # no turn end among its names


def test_dream_gets_void_in_a_spare_row(dream):
    tokenizer, roles = dream
    assert roles == Roles(
        mask=151666, eos=151643, ends=(151643, 151645), void=151667, rainbow=tuple(range(151667, 151674))
    )
    assert tokenizer("a<|void|>b")["input_ids"][1:-1] == [151667]
    assert tokenizer.decode([64, 151667, 65, 151670], skip_special_tokens=True) == "ab"


def test_no_spare_row_means_no_void():
    tokenizer = Named({"a": 0, "<mask>": 1, "</s>": 2}, eos=2)
    assert resolve(tokenizer, {}, rows=3) == Roles(mask=1, eos=2)


def test_sdar_has_a_mask_of_its_own_and_two_ends(data_dir):
    """The tokenizer's files, without its vocabulary of words: the special tokens are what the roles are made of."""
    folder = data_dir / "hub" / "sdar-8b-chat"
    tokens = read_json(folder / "tokenizer_config.json")["added_tokens_decoder"]
    names = Named({token["content"]: int(number) for number, token in tokens.items()}, eos=151643)
    sdar = FAMILIES["sdar"].role_names
    roles = resolve(names, read_json(folder / "config.json"), rows=151936, names=sdar)
    assert (roles.mask, roles.eos, set(roles.ends)) == (151669, 151643, {151643, 151645})
    assert set(roles.ends) == set(read_json(folder / "generation_config.json")["eos_token_id"])


def test_mask_and_eos_must_be_known():
    with pytest.raises(RoleError, match="role 'mask': neither the config nor the tokenizer names one"):
        resolve(Named({"<|void|>": 3}, eos=2), {}, rows=9)


def test_ids_outside_the_embedding_are_refused():
    with pytest.raises(RoleError, match=r"role id 64 is outside the embedding \(0 to 63\)"):
        build({"mask": 0, "eos": 1, "void": 64}, rows=64)
    with pytest.raises(RoleError, match="role 'pad' is unknown"):
        build({"mask": 0, "eos": 1, "pad": 2}, rows=64)


@pytest.fixture
def fresh_dream(data_dir):
    return Qwen2Tokenizer.from_pretrained(str(data_dir / "hub" / "dream-7b-instruct"))


def test_diffucoder_has_a_void_of_its_own(fresh_dream):
    """Its padding token stands where our VOID would go; both in one row would be one token."""
    fresh_dream.add_tokens(["<|dlm_pad|>"], special_tokens=True)
    roles = resolve(fresh_dream, {"mask_token_id": 151666}, rows=DREAM_ROWS, names=DREAM.role_names)
    assert (roles.void, roles.rainbow, roles.never) == (151667, (151667,), ())
    assert fresh_dream.convert_ids_to_tokens(151667) == "<|dlm_pad|>"


def test_dreamon_keeps_its_expand_token(fresh_dream):
    fresh_dream.add_tokens(["<|expand|>"], special_tokens=True)
    roles = resolve(fresh_dream, {"mask_token_id": 151666}, rows=DREAM_ROWS, names=DREAM.role_names)
    assert (roles.void, roles.never) == (151668, (151667,))
    assert 151667 in roles.all()
