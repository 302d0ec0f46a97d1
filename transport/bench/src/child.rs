//! The receiving process: does what it is asked, line by line, until its input ends.

use std::io::{BufRead, Write};
use std::sync::Arc;

use splitcore_core::id::RequestId;
use splitcore_core::kv::PoolShape;
use splitcore_transport::{Incarnation, Landing, ListenOptions, Pool, Receiver, TransferKey};

use crate::setting::{Answer, Ask, BenchError, PATIENCE, now_ns};

/// The whole life of the receiving process.
///
/// # Errors
/// The pipes break; what goes wrong with a transfer is told to the parent.
pub fn receive(input: impl BufRead, mut output: impl Write) -> std::io::Result<()> {
    let mut receiver = None;
    for line in input.lines() {
        let answer = match serde_json::from_str(&line?) {
            Ok(ask) => answer(&mut receiver, ask).unwrap_or_else(|error| Answer::Failed(error.to_string())),
            Err(error) => Answer::Failed(error.to_string()),
        };
        serde_json::to_writer(&mut output, &answer)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}

fn answer(receiver: &mut Option<Receiver>, ask: Ask) -> Result<Answer, BenchError> {
    match ask {
        Ask::Listen { model, shape, slots } => {
            let listening = listen(&model, shape, slots)?;
            let endpoint = listening.endpoint().clone();
            *receiver = Some(listening);
            Ok(Answer::Listening(Box::new(endpoint)))
        }
        Ask::Open { writer, count, blocks, layer_bytes } => {
            let landing = landing(receiver.as_ref())?;
            let open = |request| landing.open(writer, RequestId(request), blocks.clone(), layer_bytes);
            let grants = (0..u64::from(count)).map(open).collect::<Result<_, _>>()?;
            Ok(Answer::Opened(grants))
        }
        Ask::Await { keys } => {
            let landing = landing(receiver.as_ref())?;
            let whole = |&key: &TransferKey| -> Result<u64, BenchError> {
                watch(landing, key)?;
                Ok(now_ns())
            };
            let ns = keys.iter().map(whole).collect::<Result<_, _>>()?;
            for key in keys {
                landing.release(key)?;
            }
            Ok(Answer::Seen { ns })
        }
        Ask::Watch { key } => {
            let landing = landing(receiver.as_ref())?;
            let ns = watch(landing, key)?;
            landing.release(key)?;
            Ok(Answer::Seen { ns })
        }
    }
}

fn listen(model: &str, shape: PoolShape, slots: u32) -> Result<Receiver, BenchError> {
    let pool = Arc::new(Pool::shared(shape)?);
    let options = ListenOptions { slots, ..ListenOptions::new(model) };
    Ok(Receiver::listen(pool, Incarnation::random()?, options)?)
}

fn landing(receiver: Option<&Receiver>) -> Result<&Landing, BenchError> {
    receiver.map(Receiver::landing).ok_or_else(|| BenchError::Child("asked before it listens".to_owned()))
}

/// When each layer was seen.
fn watch(landing: &Landing, key: TransferKey) -> Result<Vec<u64>, BenchError> {
    let layers = landing.pool().shape().layout.layers;
    let each = |layer| -> Result<u64, BenchError> {
        landing.wait_layer(key, layer, PATIENCE)?;
        Ok(now_ns())
    };
    (0..layers).map(each).collect()
}
