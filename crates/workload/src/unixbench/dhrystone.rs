//! Dhrystone 2.1: integers, strings, records and calls.
//!
//! The operations are those of Weicker's definition ("Dhrystone benchmark: rationale for version 2", SIGPLAN
//! Notices 23, 1988). Records refer to each other by index. The definition keeps some functions in a second
//! file, so that no compiler inlines them; these are marked here.

use std::hint::black_box;

use crate::Error;
use crate::measure::{Batch, Setup};

/// A string of the definition: thirty characters and a terminator.
type Text = [u8; 31];

const FIRST: &Text = b"DHRYSTONE PROGRAM, 1'ST STRING\0";
const SECOND: &Text = b"DHRYSTONE PROGRAM, 2'ND STRING\0";
const THIRD: &Text = b"DHRYSTONE PROGRAM, 3'RD STRING\0";
const SOME: &Text = b"DHRYSTONE PROGRAM, SOME STRING\0";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ident {
    One,
    Two,
    Three,
    Four,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    next: usize,
    discriminant: Ident,
    kind: Ident,
    number: i32,
    text: Text,
}

/// Global variables of the definition.
struct Globals {
    records: [Record; 2],
    number: i32,
    flag: bool,
    first_letter: u8,
    second_letter: u8,
    row: [i32; 50],
    table: Box<[[i32; 50]; 50]>,
}

/// Index of the record that the definition's global pointer names.
const GLOBAL: usize = 0;
/// Index of the record that the first one points to.
const NEXT: usize = 1;

pub(crate) fn prepare(_: &Setup) -> Result<Batch, Error> {
    let mut globals = Globals::new();
    let mut runs = 0_i32;
    let first = black_box(*FIRST);
    Ok(Box::new(move |times| {
        let mut last = None;
        for _ in 0..times {
            // Wraps as in C, where the counter of a long run wraps in the table.
            runs = runs.wrapping_add(1);
            last = Some(globals.run(runs, &first));
        }
        match last {
            Some(locals) => globals.check(locals, runs),
            None => Ok(()),
        }
    }))
}

impl Globals {
    fn new() -> Self {
        let record = |next| Record {
            next,
            discriminant: Ident::One,
            kind: Ident::Three,
            number: 40,
            text: *SOME,
        };
        let mut table = Box::new([[0; 50]; 50]);
        table[8][7] = 10;
        Self {
            // The first run fills the second record.
            records: [record(NEXT), record(GLOBAL)],
            number: 0,
            flag: false,
            first_letter: 0,
            second_letter: 0,
            row: [0; 50],
            table,
        }
    }

    /// Makes one pass. Returns the three local numbers and the local kind at its end.
    #[inline(never)]
    fn run(&mut self, index: i32, first: &Text) -> (i32, i32, i32, Ident) {
        self.first_letter = b'A';
        self.flag = false;
        self.flag |= self.first_letter == b'A';
        self.second_letter = b'B';
        let (mut one, mut two, mut three) = (2, 3, 0);
        let mut second_text = *SECOND;
        black_box(&mut second_text);
        let mut kind = Ident::Two;
        self.flag = !self.compare_texts(first, &second_text);
        while one < two {
            // The definition assigns this value and overwrites it.
            black_box(5 * one - two);
            three = add_both(one, two);
            one += 1;
        }
        fill(&mut self.row, &mut self.table, one, three);
        self.number = 5;
        self.follow(GLOBAL);
        for letter in b'A'..=self.second_letter {
            if kind == self.compare_letters(letter, b'C') {
                kind = choose(Ident::One, self.number);
                second_text = *THIRD;
                two = index;
                self.number = index;
            }
        }
        black_box(&second_text);
        two *= one;
        one = two / three;
        two = 7 * (two - three) - one;
        one = self.lower(one);
        (one, two, three, kind)
    }

    /// The definition's `Proc_1` and, within it, `Proc_3`.
    fn follow(&mut self, at: usize) {
        let next = self.records[at].next;
        self.records[next] = self.records[GLOBAL];
        self.records[at].number = 5;
        self.records[next].number = self.records[at].number;
        self.records[next].next = self.records[at].next;
        self.records[next].next = self.records[GLOBAL].next;
        self.records[GLOBAL].number = add_both(10, self.number);
        if self.records[next].discriminant == Ident::One {
            self.records[next].number = 6;
            self.records[next].kind = choose(self.records[at].kind, self.number);
            self.records[next].next = self.records[GLOBAL].next;
            self.records[next].number = add_both(self.records[next].number, 10);
        } else {
            self.records[at] = self.records[next];
        }
    }

    /// The definition's `Proc_2`.
    fn lower(&self, number: i32) -> i32 {
        let (mut counter, mut result) = (number + 10, number);
        loop {
            if self.first_letter == b'A' {
                counter -= 1;
                result = counter - self.number;
                return result;
            }
            black_box(&mut counter);
            black_box(&mut result);
        }
    }

    /// `Func_1`, of the second file.
    #[inline(never)]
    fn compare_letters(&mut self, one: u8, other: u8) -> Ident {
        if one != other {
            return Ident::One;
        }
        self.first_letter = one;
        Ident::Two
    }

    /// `Func_2`, of the second file.
    #[inline(never)]
    fn compare_texts(&mut self, one: &Text, other: &Text) -> bool {
        let (mut position, mut letter) = (2, 0_u8);
        while position <= 2 {
            if self.compare_letters(one[position], other[position + 1]) == Ident::One {
                letter = b'A';
                position += 1;
            }
        }
        if (b'W'..b'Z').contains(&letter) {
            position = 7;
        }
        if letter == b'R' {
            return true;
        }
        if one > other {
            self.number = i32::try_from(position + 7).unwrap_or(i32::MAX);
            return true;
        }
        false
    }

    /// Compares the values with the ones that the definition gives as correct.
    fn check(&self, locals: (i32, i32, i32, Ident), runs: i32) -> Result<(), Error> {
        let [global, next] = &self.records;
        let right = locals == (5, 13, 7, Ident::Two)
            && (self.number, self.flag) == (5, true)
            && (self.first_letter, self.second_letter) == (b'A', b'B')
            && (self.row[8], self.table[8][7]) == (7, runs.wrapping_add(10))
            && (global.kind, global.number, global.text) == (Ident::Three, 17, *SOME)
            && (next.kind, next.number, next.text) == (Ident::Two, 18, *SOME);
        if right {
            return Ok(());
        }
        Err(Error::Unexpected {
            expected: "the results that Dhrystone 2.1 defines".to_owned(),
            got: format!("{locals:?}, number {}, {global:?}, {next:?}", self.number),
        })
    }
}

/// `Proc_6`, of the second file, with `Func_3` within it.
#[inline(never)]
fn choose(kind: Ident, number: i32) -> Ident {
    match kind {
        Ident::One => Ident::One,
        Ident::Two if number > 100 => Ident::One,
        Ident::Two | Ident::Four => Ident::Four,
        Ident::Three => Ident::Two,
    }
}

/// `Proc_7`, of the second file.
#[inline(never)]
fn add_both(one: i32, other: i32) -> i32 {
    other + (one + 2)
}

/// `Proc_8`, of the second file.
#[inline(never)]
fn fill(row: &mut [i32; 50], table: &mut [[i32; 50]; 50], one: i32, other: i32) {
    let place = one + 5;
    let at = usize::try_from(place).unwrap_or_default();
    row[at] = other;
    row[at + 1] = row[at];
    row[at + 30] = place;
    table[at][at..=at + 1].fill(place);
    table[at][at - 1] = table[at][at - 1].wrapping_add(1);
    table[at + 20][at] = row[at];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defined_results_come_out() {
        let mut globals = Globals::new();
        for run in 1..=3 {
            let locals = globals.run(run, FIRST);
            globals.check(locals, run).unwrap();
        }
    }

    #[test]
    fn wrong_results_are_noticed() {
        let mut globals = Globals::new();
        let locals = globals.run(1, FIRST);
        globals.records[NEXT].number += 1;
        assert!(globals.check(locals, 1).is_err());
    }
}
