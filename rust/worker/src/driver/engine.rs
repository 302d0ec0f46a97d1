//! With the engine: a plan becomes spans, and what was drawn becomes tokens.

use std::collections::BTreeMap;

use splitcore_core::event::MachineEvent;
use splitcore_core::id::{LegKey, MachineId};
use splitcore_core::leg::Compute;
use splitcore_core::machine::BatchPlan;

use super::Life;
use crate::pass::{Pass, Span};

/// The pass that runs.
#[derive(Debug)]
pub(super) struct Running {
    number: u64,
    /// Legs that a token is drawn for.
    draws: Vec<LegKey>,
    /// Legs that are in it and that the engine cannot run: they end with it.
    unfit: Vec<LegKey>,
    /// Transfers that follow its layers.
    puts: Vec<(LegKey, MachineId)>,
    prefill_tokens: u32,
    decodes: u32,
}

impl Life<'_> {
    pub(super) fn run_pass(&mut self, number: u64) {
        let plan = self.machine.plan().clone();
        let mut running = Running {
            number,
            draws: Vec::new(),
            unfit: Vec::new(),
            puts: plan.puts.iter().map(|put| (put.key, put.to)).collect(),
            prefill_tokens: plan.prompt_tokens,
            decodes: plan.decodes.len() as u32,
        };
        match self.spans(&plan, &mut running) {
            Ok(spans) => {
                self.running = Some(running);
                self.board.post(Pass { number, spans });
            }
            Err(reason) => self.fail(reason),
        }
    }

    fn spans(&mut self, plan: &BatchPlan, running: &mut Running) -> Result<Vec<Span>, String> {
        let prefills = plan.prefills.iter().map(|item| {
            let end = item.start as usize + item.tokens as usize;
            (item.key, Some(item.start as usize..end), item.samples)
        });
        let decodes = plan.decodes.iter().map(|&key| (key, None, true));
        let mut spans = Vec::with_capacity(plan.prefills.len() + plan.decodes.len());
        for (key, range, samples) in prefills.chain(decodes) {
            let unknown = || format!("pass {}: nothing is known of request {}", plan.pass, key.request.0);
            let context = self.contexts.get(key).ok_or_else(unknown)?;
            let (_, table) = self.machine.leg(key).ok_or_else(unknown)?;
            let (request, has) = (key.request.0, context.len());
            let range = range.unwrap_or(has - 1..has);
            if range.end > has {
                return Err(format!(
                    "request {request} has {has} tokens, and the pass is up to {}",
                    range.end
                ));
            }
            let Some(tokens) = context.span(range.clone(), self.options.bounds) else {
                self.options.log.line(&format!("request {request} is past what the model can run, and ends"));
                running.unfit.push(key);
                continue;
            };
            if samples {
                running.draws.push(key);
            }
            spans.push(Span {
                key,
                tokens: tokens.to_vec(),
                start: range.start as u32,
                blocks: table.blocks().iter().map(|block| block.0).collect(),
                sampling: samples.then_some(context.descriptor().sampling),
                forbidden: if samples { context.forbidden().to_vec() } else { Vec::new() },
                output: context.has(),
                follows: Vec::new(),
            });
        }
        for put in &plan.puts {
            let Some(span) = spans.iter_mut().find(|span| span.key == put.key) else { continue };
            let Some((_, table)) = self.machine.leg(put.key) else { continue };
            span.follows.push(self.mover.follow(put.key, put.to, table.blocks(), put.tokens));
        }
        Ok(spans)
    }

    pub(super) fn pass_done(&mut self, number: u64, drawn: Vec<(LegKey, u32)>) {
        let Some(running) = self.running.take().filter(|running| running.number == number) else {
            return self.fail(format!("the engine has run pass {number}, which does not run"));
        };
        let drawn: BTreeMap<LegKey, u32> = drawn.into_iter().collect();
        let mut ended = running.unfit;
        for key in running.draws {
            let Some(&token) = drawn.get(&key) else {
                return self.fail(format!("pass {number} has drawn no token for request {}", key.request.0));
            };
            let Some(context) = self.contexts.get_mut(key) else { continue };
            let first = context.has();
            context.draw(token, self.options.bounds);
            if context.is_over(self.options.bounds) {
                ended.push(key);
            }
            if context.has() > first {
                // Before the notices of this pass: whoever hears of the end has all tokens.
                self.give_news(key, first);
            }
        }
        for (key, to) in running.puts {
            if !ended.contains(&key) {
                self.give_to_destination(key, to);
            }
        }
        let now = self.now();
        let prefills: Vec<LegKey> = self.machine.oldest_plan().prefills.iter().map(|item| item.key).collect();
        self.board.count(|stats| {
            stats.passes += 1;
            stats.prefill_tokens += u64::from(running.prefill_tokens);
            stats.decode_tokens += u64::from(running.decodes);
            stats.decode_passes += u64::from(running.decodes > 0);
        });
        if let Err(error) = self.tell(&MachineEvent::IterationDone { pass: number, ended }) {
            self.fail(format!("the scheduler refuses the end of pass {number}: {error}"));
        }
        for key in prefills {
            if self.machine.leg(key).is_some_and(|(state, _)| state.compute == Compute::Held) {
                self.prefilled.insert(key, now);
            }
        }
    }
}
