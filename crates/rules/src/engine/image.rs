//! Serialized compiled rule sets, which load much faster than their rules compile.

use std::hash::{DefaultHasher, Hasher};

use event::Plan;
use serde::Deserialize;

use super::{AlertSink, CompiledRule, Engine, EngineOptions};
use crate::compile::program::Written;
use crate::output::Template;

/// The bytes were not written by an engine of this build of the program, or are incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a compiled rule set of this version")]
pub struct NotAnImage;

#[derive(Deserialize)]
struct Image {
    program: Written,
    rules: Vec<CompiledRule>,
    context: Template,
    plan: Plan,
}

impl Engine {
    /// Serializes everything that was compiled, and the result of [`Engine::plan`]. Only the same build of
    /// this program can read it.
    #[must_use]
    pub fn to_image(&self, plan: &Plan) -> Vec<u8> {
        let bytes = [0; SUM].to_vec();
        let mut bytes =
            postcard::to_extend(&(&self.program, &self.rules, &self.context, plan), bytes)
                .expect("memory takes all of it");
        let sum = sum(&bytes[SUM..]);
        bytes[..SUM].copy_from_slice(&sum);
        bytes
    }

    /// Restores an engine from its image, with counters at zero, and its plan. `options` must equal those
    /// that the engine was compiled with, except for recorder, clock and context: the image already contains their
    /// effect on rules. A checksum detects accidental changes. A deliberately changed image can make the
    /// program panic later, so store images where nobody else can write.
    ///
    /// # Errors
    /// Fails if the bytes are not an output of [`Engine::to_image`].
    pub fn from_image(
        bytes: &[u8],
        options: &EngineOptions,
        sink: Box<dyn AlertSink>,
    ) -> Result<(Self, Plan), NotAnImage> {
        let (expected, bytes) = bytes.split_first_chunk::<SUM>().ok_or(NotAnImage)?;
        if *expected != sum(bytes) {
            return Err(NotAnImage);
        }
        let read = postcard::take_from_bytes(bytes);
        let (image, rest): (Image, _) = read.map_err(|_other_build| NotAnImage)?;
        if !rest.is_empty() {
            return Err(NotAnImage);
        }
        let program = image.program.read().map_err(|_other_build| NotAnImage)?;
        let engine = Self::of(program, image.rules, image.context, options, sink);
        Ok((engine, image.plan))
    }
}

const SUM: usize = 8;

/// Computes the checksum that detects accidental changes.
fn sum(bytes: &[u8]) -> [u8; SUM] {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alert::Alert;
    use crate::load::Loader;

    struct Nowhere;

    impl AlertSink for Nowhere {
        fn emit(&self, _: Alert) {}
    }

    fn image() -> Vec<u8> {
        let rule = "- rule: r\n  desc: d\n  condition: evt.type = openat and fd.name glob '/e*' and \
                    proc.aname[2] in (a, b)\n  output: '%evt.arg.flags %proc.name'\n  priority: INFO\n";
        let (ruleset, _) = Loader::new().add("r.yaml", rule).finish();
        let (engine, problems) =
            Engine::new(&ruleset, &EngineOptions::default(), Box::new(Nowhere));
        assert!(problems.is_empty(), "{problems:?}");
        engine.to_image(&engine.plan().0)
    }

    fn read(bytes: &[u8]) -> Result<Engine, NotAnImage> {
        Engine::from_image(bytes, &EngineOptions::default(), Box::new(Nowhere))
            .map(|(engine, _)| engine)
    }

    #[test]
    fn an_image_names_its_rules() {
        let engine = read(&image()).expect("an image");
        let names: Vec<_> = engine.matches().collect();
        assert_eq!(names, [("r", 0)]);
        let fields = engine.output_fields("r").expect("a rule");
        assert_eq!(fields, ["evt.arg.flags", "proc.name"]);
    }

    #[test]
    fn what_is_cut_off_or_changed_is_no_image() {
        let whole = image();
        for len in [0, SUM - 1, SUM, whole.len() / 2, whole.len() - 1] {
            assert!(read(&whole[..len]).is_err(), "{len}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(read(&changed).is_err(), "{at}");
        }
        // Simulates the image of another build, which has another layout.
        let mut other = whole[SUM..].to_vec();
        other.reverse();
        let other = [&sum(&other)[..], &other].concat();
        assert!(read(&other).is_err());
    }
}
