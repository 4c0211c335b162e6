"""What becomes a term, and what does not."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aftermind import errors
from aftermind.ranking import ends_asking, spoken, terms, tokens
from aftermind.ranking.languages import stop_words
from aftermind.ranking.tokenizer import LANGUAGES, language_of, stem


def test_forms_of_a_word_meet_in_their_stem() -> None:
    assert terms("painting painted paints") == ["paint"]


def test_irregular_forms_and_words_of_chats_meet_in_their_usual_word() -> None:
    assert terms("She went there and bought pics for the kids") == terms("go buy photos child")
    assert terms("went", "porter") == terms("go", "porter")
    assert terms("went", "german") == ["went"]


def test_stop_words_and_possessives_are_no_terms() -> None:
    assert terms("What did Caroline's brother do?") == ["carolin", "brother"]


def test_the_simple_language_neither_stems_nor_drops() -> None:
    assert terms("The paintings", "simple") == ["the", "paintings"]


def test_another_language_has_its_own_stems() -> None:
    assert terms("häuser haus", "german") == ["haus"]


def test_a_language_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(errors.InvalidSettings):
        terms("ghobe", "klingon")


def test_scripts_without_blanks_are_found_by_pairs() -> None:
    assert set(tokens("東京")) <= set(tokens("私は東京に住んでいます"))


@pytest.mark.parametrize(
    ("question", "turn"),
    [
        ("부산", "나는 부산에 살아요."),
        ("猫", "私は札幌に住んでいます。猫を二匹飼っています。"),
        ("녹차", "녹차를 좋아해요"),
        ("집", "집에서 일해요"),
        ("cafe resume", "I left my résumé at the café."),
        ("Bogota", "Vivo en Bogotá."),
        ("Krakow", "Mieszkam w Krakowie, czyli Kraków"),
        ("🐶", "Look at my puppy 🐶❤️"),
        ("🇧🇷", "greetings from 🇧🇷!"),
        ("Erdnuss", "Ich bin allergisch gegen Erdnüsse."),
        ("Wo arbeite ich?", "Seit Mai arbeitete ich bei Siemens."),
        ("¿Qué perros tengo?", "Tengo un perro."),
        ("दिल्ली", "मैं दिल्ली में रहता हूँ"),
        ("Paris", "Ich ziehe im Mai nach Paris."),
    ],
)
def test_a_question_shares_a_term_with_the_turn_that_answers_it(question: str, turn: str) -> None:
    assert set(terms(question)) & set(terms(turn))


@pytest.mark.parametrize("noun", ["학교", "부산", "서울역"])
def test_korean_nouns_lose_their_particle(noun: str) -> None:
    particles = (
        "은 는 이 가 을 를 에 에서 에게 한테 의 도 만 로 으로 와 과 랑 이랑 하고 까지 부터 처럼 보다 마다 에는 에서는"
    )

    assert {particle for particle in particles.split() if tokens(noun + particle) != tokens(noun)} == set()


@pytest.mark.parametrize("language", sorted(LANGUAGES - {"simple"}))
def test_stop_words_of_every_stemmed_language_are_no_terms_of_it(language: str) -> None:
    listed = sorted(stop_words(language))[:25]

    assert {word for word in listed if word in terms(word, language)} == set()


def test_a_text_in_another_language_loses_its_own_stop_words() -> None:
    assert set(terms("Ich wohne mit meiner Frau in Bern.")) == {"wohn", "frau", "bern"}
    assert set(terms("Je suis allergique aux noix.")) == {"allergiqu", "allerg", "noix"}


@pytest.mark.parametrize("language", sorted(LANGUAGES - {"simple"}))
def test_every_stemmed_language_has_stop_words(language: str) -> None:
    assert len(stop_words(language)) >= 25


def test_articles_and_modal_verbs_of_english_are_no_terms() -> None:
    assert terms("Do I have an appointment?") == terms("appointment")
    assert terms("What would I, could I, might I, must I eat?") == terms("eat")
    assert terms("May I eat?") == terms("may eat"), "a month"


@pytest.mark.parametrize(
    "forms",
    [
        "arbeite arbeitete gearbeitet",
        "wohne wohnen wohnte gewohnt",
        "spreche spricht sprach gesprochen",
        "einkaufe eingekauft",
        "studiere studiert studierten",
        "besuche Besuch besucht besuchte",
        "Geschichte Geschichten",
        "Geschwister Geschwistern",
        "Bericht berichten",
    ],
)
def test_forms_of_a_german_word_are_one_term(forms: str) -> None:
    assert len({stem(form.casefold(), "german") for form in forms.split()}) == 1


@pytest.mark.parametrize("words", ["Geschäft Schaf", "Gewalt Wal", "Gewicht wichen", "gemeint mein", "Gericht rich"])
def test_german_nouns_are_no_participles(words: str) -> None:
    assert len({stem(word.casefold(), "german") for word in words.split()}) == 2


def test_words_that_people_ask_about_are_no_stop_words() -> None:
    assert terms("¿Dónde trabajo?", "spanish") == ["trabaj"]
    assert "viagem" in terms("a viagem", "simple")
    assert not {"trabajo", "casa"} & stop_words("spanish")


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Ich wohne in Bern.", "de"),
        ("¿Dónde trabajo?", "es"),
        ("Je suis allergique aux noix.", "fr"),
        ("Moro em Lisboa e gosto de café.", "pt"),
        ("Abito a Roma con mia moglie.", "it"),
        ("Mieszkam w Krakowie.", "pl"),
        ("Я живу в Москве.", "ru"),
        ("東京に住んでいます", "ja"),
        ("我住在北京", "zh"),
        ("나는 부산에 살아요", "ko"),
        ("أعيش في القاهرة", "ar"),
        ("मैं दिल्ली में रहता हूँ", "hi"),
        ("Take care!", None),
        ("My dog is called Dr. Watson.", None),
        ("My cat is named Mr. Whiskers.", None),
        ("Mój szef to dr Nowak.", "pl"),
        ("C'est la vie, my friend, I love it", "en"),
        ("I study at MIT.", "en"),
        ("ICH WOHNE in Graz.", "de"),
        ("Oslo", None),
        ("", None),
    ],
)
def test_the_language_of_a_message_is_detected_or_left_undecided(text: str, language: str | None) -> None:
    assert language_of(text) == language


@example("가")  # a stop word of Korean
@given(st.text())
def test_a_text_gives_the_same_terms_composed_and_decomposed(text: str) -> None:
    assert terms(unicodedata.normalize("NFD", text)) == terms(unicodedata.normalize("NFC", text))


@pytest.mark.parametrize("text", ["", "   ", "🙂🙃", "!!!", "'; DROP TABLE", "a & b | !c <-> d:*", "مرحبا بالعالم"])
def test_odd_texts_give_terms_or_none(text: str) -> None:
    assert all(term == term.strip() and term for term in terms(text))


@given(st.text())
def test_any_text_gives_distinct_terms(text: str) -> None:
    found = terms(text)

    assert len(found) == len(set(found))
    assert all(found)


def test_a_document_has_a_bounded_number_of_terms() -> None:
    assert len(terms(" ".join(f"w{number}" for number in range(9_000)))) == 5_000


def test_a_turn_is_embedded_with_its_speaker() -> None:
    assert spoken("Ann", "I moved.") == "Ann: I moved."
    assert spoken(None, "I moved.") == "I moved."


def test_a_question_is_told_from_an_answer() -> None:
    assert ends_asking("Where do you live? \n")
    assert not ends_asking("Where I live? In Oslo.")
