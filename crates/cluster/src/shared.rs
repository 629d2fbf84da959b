//! Values that many nodes report alike, each kept once.

use std::borrow::ToOwned;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Number of values before the first sweep.
const FIRST_SWEEP: usize = 1024;

/// A set of values, each kept once for all who use it.
///
/// A value that nobody uses any more stays until the next sweep, which comes when the set is twice as large as what was used at the
/// last one, and never below 1024 values: adding a value takes a constant time on average. When less is used than at the last
/// sweep, the set stays as large as it is until values are added.
#[derive(Debug)]
pub(crate) struct SharedValues<T: ?Sized> {
    values: HashSet<Arc<T>>,
    /// Number of values at which those that nobody uses are dropped.
    sweep: usize,
}

impl<T: ?Sized> Default for SharedValues<T> {
    fn default() -> Self {
        Self {
            values: HashSet::new(),
            sweep: FIRST_SWEEP,
        }
    }
}

impl<T> SharedValues<T>
where
    T: ?Sized + ToOwned + Eq + Hash,
    Arc<T>: From<T::Owned>,
{
    /// The value that is kept; it is added if there is none like it.
    pub(crate) fn share(&mut self, value: &T) -> Arc<T> {
        if let Some(known) = self.values.get(value) {
            return Arc::clone(known);
        }
        if self.values.len() >= self.sweep {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.values.shrink_to_fit();
            self.sweep = FIRST_SWEEP.max(self.values.len() * 2);
        }
        let new: Arc<T> = value.to_owned().into();
        self.values.insert(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_and_values_that_nobody_uses_go() {
        let mut values = SharedValues::<str>::default();
        let first = values.share("a");
        assert!(Arc::ptr_eq(&first, &values.share("a")));
        for number in 0..FIRST_SWEEP * 8 {
            values.share(&number.to_string());
        }
        assert!(
            values.values.len() <= FIRST_SWEEP,
            "{}",
            values.values.len()
        );
        assert!(Arc::ptr_eq(&first, &values.share("a")));
    }
}
