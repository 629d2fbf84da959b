//! Points in time as text.

use std::fmt;

const SECOND: u64 = 1_000_000_000;
const DAY_SECONDS: i64 = 86_400;

/// A point in time, split into its calendar parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct CivilTime {
    year: i64,
    month: i64,
    day: i64,
    second_of_day: i64,
    nanosecond: u64,
}

impl CivilTime {
    /// Splits `time_ns` (nanoseconds since the epoch) at `offset` seconds east of Greenwich.
    pub(super) fn new(time_ns: u64, offset: i32) -> Self {
        let seconds = i64::try_from(time_ns / SECOND).expect("2^64 ns are less than 2^63 s");
        let seconds = seconds + i64::from(offset);
        let (year, month, day) = date(seconds.div_euclid(DAY_SECONDS));
        let second_of_day = seconds.rem_euclid(DAY_SECONDS);
        Self {
            year,
            month,
            day,
            second_of_day,
            nanosecond: time_ns % SECOND,
        }
    }

    /// Formats as `2026-11-21`.
    pub(super) fn date(self) -> impl fmt::Display {
        Shown(move |f: &mut fmt::Formatter<'_>| {
            write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
        })
    }

    /// Formats as `08:13:05`.
    pub(super) fn clock(self) -> impl fmt::Display {
        Shown(move |f: &mut fmt::Formatter<'_>| {
            let (hour, rest) = (self.second_of_day / 3600, self.second_of_day % 3600);
            write!(f, "{hour:02}:{:02}:{:02}", rest / 60, rest % 60)
        })
    }

    /// Formats as `08:13:05.123456789`.
    pub(super) fn precise_clock(self) -> impl fmt::Display {
        Shown(move |f: &mut fmt::Formatter<'_>| {
            write!(f, "{}.{:09}", self.clock(), self.nanosecond)
        })
    }
}

struct Shown<F>(F);

impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Display for Shown<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)(f)
    }
}

/// Returns year, month and day of a count of days since 1970-01-01 in the Gregorian calendar.
///
/// Counts in eras of 400 years (146097 days) that begin on 1 March, so that the leap day is the last day of a
/// year.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_agree_with_the_calendar() {
        // Expected values from `date -u -d @SECONDS`.
        let rows = [
            (0, 0, "1970-01-01 00:00:00"),
            (951_782_399, 0, "2000-02-28 23:59:59"),
            (951_782_400, 0, "2000-02-29 00:00:00"),
            (1_709_164_800, 0, "2024-02-29 00:00:00"),
            (1_735_689_599, 0, "2024-12-31 23:59:59"),
            (1_735_689_599, 3600, "2025-01-01 00:59:59"),
            (0, -1, "1969-12-31 23:59:59"),
            (4_107_542_400, 0, "2100-03-01 00:00:00"),
        ];
        for (seconds, offset, expected) in rows {
            let moment = CivilTime::new(seconds * SECOND, offset);
            assert_eq!(format!("{} {}", moment.date(), moment.clock()), expected);
        }
        let moment = CivilTime::new(1_000_000_007, 0);
        assert_eq!(moment.precise_clock().to_string(), "00:00:01.000000007");
        assert_eq!(
            CivilTime::new(u64::MAX, i32::MAX).clock().to_string().len(),
            8
        );
    }
}
