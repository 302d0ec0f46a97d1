//! Transfers over real sockets on loopback.

mod kit;

use kit::*;
use splitcore_transport::Completion;

#[test]
fn every_byte_of_every_layer_arrives_and_nothing_else_is_touched() {
    let pair = pair(shape(3, 8, 64 << 10));
    let landing = pair.receiver.landing().clone();
    let blocks = [6, 1, 4];
    let grant = open(&landing, 1, &blocks);
    send_all(&pair, &grant, &blocks);
    wait_all(&landing, grant.key);
    assert_eq!(ended(&*pair.link, 1), [Completion::LocalDone(grant.key)]);
    assert_arrived(&pair, &blocks);
    for block in [0, 2, 3, 5, 7] {
        assert!(block_bytes(&pair.to, 1, block).iter().all(|&byte| byte == 0), "block {block} was written");
    }
    landing.release(grant.key).unwrap();
    assert_eq!(landing.in_use(), 0);
}
