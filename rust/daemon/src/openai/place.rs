//! Ids of events: how far a client is with each choice, in a few letters.
//!
//! Of one choice it is the number of its tokens. Of several it is the smallest number among those that go on, the bits
//! that each takes beyond it, and those bits, six a letter; all of them set say that the client has the whole choice.
//! Choices go on side by side, so that a bit or two are enough for each.

/// Of a choice that the client has to its end.
pub(super) const ALL: u32 = u32::MAX;

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The id of who has so many tokens of each choice.
pub(super) fn write(has: &[u32]) -> String {
    if let [one] = has {
        return one.to_string();
    }
    let going = || has.iter().copied().filter(|&count| count != ALL);
    let low = going().min().unwrap_or(0);
    let spread = going().max().map_or(0, |high| high - low);
    let width = u32::BITS - (spread + 1).leading_zeros();
    let code = |count: u32| if count == ALL { (1_u64 << width) - 1 } else { u64::from(count - low) };
    let mut id = format!("{low}.{width}.");
    let (mut bits, mut held) = (0_u64, 0);
    for &count in has {
        (bits, held) = ((bits << width) | code(count), held + width);
        while held >= 6 {
            held -= 6;
            id.push(letter(bits >> held));
            bits &= (1 << held) - 1;
        }
    }
    if held > 0 {
        id.push(letter(bits << (6 - held)));
    }
    id
}

fn letter(bits: u64) -> char {
    char::from(LETTERS[(bits & 63) as usize])
}

/// What an id says, if it is one of a stream with so many tokens of each choice at most.
pub(super) fn read(id: &str, most: &[u32]) -> Option<Vec<u32>> {
    let has = if most.len() == 1 { vec![number(id)?] } else { unpack(id, most.len())? };
    // An end without a token of its own counts as one.
    let fits =
        |(&count, &most): (&u32, &u32)| count <= most.saturating_add(1) || (count == ALL && has.len() > 1);
    (has.iter().zip(most).all(fits) && write(&has) == id).then_some(has)
}

fn number(digits: &str) -> Option<u32> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn unpack(id: &str, choices: usize) -> Option<Vec<u32>> {
    let mut parts = id.splitn(3, '.');
    let (low, width, letters) = (number(parts.next()?)?, number(parts.next()?)?, parts.next()?);
    if !(1..=u32::BITS).contains(&width) || letters.len() != (choices * width as usize).div_ceil(6) {
        return None;
    }
    let mut sixes = letters.bytes().map(|letter| LETTERS.iter().position(|&known| known == letter));
    let (mut bits, mut held, mut has) = (0_u64, 0, Vec::with_capacity(choices));
    while has.len() < choices {
        while held < width {
            (bits, held) = ((bits << 6) | sixes.next()?? as u64, held + 6);
        }
        held -= width;
        let (code, all) = (bits >> held, (1 << width) - 1);
        bits &= (1 << held) - 1;
        has.push(if code == all { ALL } else { low.checked_add(code as u32)? });
    }
    Some(has)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// So many tokens, or all.
    fn any_count() -> impl Strategy<Value = u32> {
        prop_oneof![4 => 0_u32..40, 1 => 0_u32..2_000_000, 1 => Just(ALL)]
    }

    proptest! {
        #[test]
        fn an_id_is_read_as_it_was_written(has in prop::collection::vec(any_count(), 2..130)) {
            prop_assert_eq!(read(&write(&has), &vec![2_000_000; has.len()]), Some(has));
        }

        #[test]
        fn of_one_choice_it_is_the_number(count in 0_u32..100_000) {
            prop_assert_eq!(write(&[count]), count.to_string());
            prop_assert_eq!(read(&count.to_string(), &[100_000]), Some(vec![count]));
        }

        #[test]
        fn choices_side_by_side_take_two_bits_each(low in 0_u32..100_000, ahead in prop::collection::vec(0_u32..3, 128)) {
            let has: Vec<u32> = ahead.iter().map(|ahead| low + ahead).collect();
            prop_assert!(write(&has).len() <= 128 * 2 / 6 + 10);
        }

        #[test]
        fn what_is_no_id_is_none(text in "[0-9A-Za-z._,-]{0,12}", choices in 1_usize..5) {
            if let Some(has) = read(&text, &vec![50; choices]) {
                prop_assert_eq!(write(&has), text);
                prop_assert!(has.iter().all(|&count| count <= 51 || count == ALL));
            }
        }
    }

    #[test]
    fn ids_of_other_streams_are_none() {
        for (id, most) in
            [("12,7", &[20, 20][..]), ("52", &[50]), ("4294967295", &[50]), ("07", &[50]), ("", &[50])]
        {
            assert_eq!(read(id, most), None, "{id}");
        }
        assert_eq!(read(&write(&[3, 4, 5]), &[50, 50]), None);
        assert_eq!(read(&write(&[3, 60]), &[50, 50]), None);
    }
}
