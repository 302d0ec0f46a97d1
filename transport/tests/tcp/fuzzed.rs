//! What the fuzzers drive, at random and from their seeds.

use std::path::Path;

use proptest::prelude::*;
use splitcore_core::id::RequestId;
use splitcore_transport::testing::frame::{Crc, DESCRIPTORS_MAX, Descriptor, HEAD, Head, Kind, Refusal};
use splitcore_transport::testing::fuzz;
use splitcore_transport::{Generation, TransferKey};

/// The seeds of one target.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// A seed, with some of its bytes changed, and more behind it.
fn mutated(target: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let more = proptest::collection::vec(any::<u8>(), 0..200);
    (prop::sample::select(seeds(target)), changes, more).prop_map(|(mut bytes, changes, more)| {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.extend(more);
        bytes
    })
}

/// A seed that goes no further than a refusal would seed nothing.
#[test]
fn the_seeds_hold_and_reach_what_they_should() {
    let layers: Vec<usize> = seeds("stream").iter().map(|seed| fuzz::stream(seed)).collect();
    // block_first, bye, early, foreign, given_up, honest, pieces, slow, stopped, twice
    assert_eq!(layers, [2, 1, 0, 1, 0, 2, 0, 1, 1, 1]);
    for (at, seed) in seeds("plans").iter().enumerate() {
        assert!(fuzz::plans(seed) > 0, "seed {at} makes no plan");
    }
}

fn key() -> impl Strategy<Value = TransferKey> {
    (any::<u64>(), any::<u32>(), 1..1_u32 << 31).prop_map(|(request, slot, generation)| TransferKey {
        request: RequestId(request),
        slot,
        generation: Generation::new(generation).unwrap(),
    })
}

fn descriptor() -> impl Strategy<Value = Descriptor> {
    (any::<u32>(), any::<u32>(), 1..=u32::MAX).prop_map(|(block, offset, bytes)| Descriptor {
        block,
        offset,
        bytes,
    })
}

fn parts(frame: &[u8]) -> (&[u8; HEAD], &[u8]) {
    frame.split_first_chunk().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.saturating_mul(6)))]

    #[test]
    fn no_stream_writes_what_it_may_not(data in proptest::collection::vec(any::<u8>(), 0..1500)) {
        fuzz::stream(&data);
    }

    #[test]
    fn no_stream_like_a_seed_writes_what_it_may_not(data in mutated("stream")) {
        fuzz::stream(&data);
    }

    #[test]
    fn no_layouts_make_a_plan_or_a_range_that_leaves_its_blocks(data in proptest::collection::vec(any::<u8>(), 0..300)) {
        fuzz::plans(&data);
    }

    #[test]
    fn no_layouts_like_a_seed_make_one_either(data in mutated("plans")) {
        fuzz::plans(&data);
    }
}

proptest! {
    #[test]
    fn a_put_is_read_as_it_was_written(
        key in key(), layer: u16, descriptors in proptest::collection::vec(descriptor(), 1..=DESCRIPTORS_MAX)
    ) {
        let mut frame = Vec::new();
        Head::encode_put(key, layer, &descriptors, &mut frame);
        let (bytes, tail) = parts(&frame);
        let head = Head::decode(bytes).unwrap();
        prop_assert_eq!((head.kind, head.key, head.layer, head.tail_len()), (Kind::Put, Some(key), layer, tail.len()));
        Head::check(bytes, tail).unwrap();
        let mut read = Vec::new();
        head.descriptors(tail, &mut read).unwrap();
        prop_assert_eq!(read, descriptors);
    }

    #[test]
    fn a_head_is_read_as_it_was_written(
        key in key(), layer: u16, tokens: u32, bytes: u64, crc32c: Option<u32>, text in ".{0,600}"
    ) {
        let mut frame = Vec::new();
        let head = Head { layer, tokens, bytes, crc32c, ..Head::new(Kind::Publish, Some(key)) };
        head.encode(&[], &mut frame);
        prop_assert_eq!(Head::decode(parts(&frame).0), Ok(head));
        frame.clear();
        let nack = Head { layer, tokens, bytes, crc32c, ..Head::new(Kind::Nack(Refusal::Denied), Some(key)) };
        nack.encode_nack(&text, &mut frame);
        let (bytes, tail) = parts(&frame);
        prop_assert_eq!(Head::decode(bytes), Ok(Head { count: tail.len() as u32, ..nack }));
        prop_assert!(Head::check(bytes, tail).is_ok() && text.as_bytes().starts_with(tail));
    }

    #[test]
    fn a_bit_that_flips_in_head_or_tail_is_seen(
        key in key(), descriptors in proptest::collection::vec(descriptor(), 1..20), at: prop::sample::Index, bit in 0_u8..8
    ) {
        let mut frame = Vec::new();
        Head::encode_put(key, 1, &descriptors, &mut frame);
        let at = at.index(frame.len());
        frame[at] ^= 1_u8 << bit;
        let (bytes, tail) = parts(&frame);
        let sound = Head::decode(bytes).is_ok_and(|head| {
            tail.get(..head.tail_len()).is_some_and(|tail| Head::check(bytes, tail).is_ok())
        });
        prop_assert!(!sound);
    }

    #[test]
    fn a_checksum_is_the_same_in_any_pieces(bytes in proptest::collection::vec(any::<u8>(), 0..5000), cut in 1_usize..999) {
        let (mut whole, mut pieces) = (Crc::NEW, Crc::NEW);
        whole.update(&bytes);
        bytes.chunks(cut).for_each(|piece| pieces.update(piece));
        prop_assert_eq!(whole, pieces);
    }
}

#[test]
fn the_checksum_is_crc32c() {
    let mut crc = Crc::NEW;
    crc.update(b"123456789");
    assert_eq!(crc.value(), 0xe306_9283);
}
