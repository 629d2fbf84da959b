//! Formats of alert times.

use jiff::Timestamp;
use jiff::civil::{DateTime, Weekday};
use jiff::tz::{Offset, TimeZone};

/// `13:53:31.726060287` in local time (`evt.time`).
pub(crate) fn clock(time_ns: u64, zone: &TimeZone) -> String {
    let time = civil(time_ns, zone);
    let subsecond = time.subsec_nanosecond();
    format!(
        "{:02}:{:02}:{:02}.{subsecond:09}",
        time.hour(),
        time.minute(),
        time.second()
    )
}

/// `2026-11-21T13:53:31.726060287+0000` (`evt.time.iso8601`), in UTC.
pub(crate) fn iso_8601(time_ns: u64) -> String {
    format!("{}+0000", date_time(time_ns))
}

/// `2026-11-21T13:53:31.726060287Z`, the `time` of a JSON alert, in UTC.
pub(crate) fn rfc_3339(time_ns: u64) -> String {
    format!("{}Z", date_time(time_ns))
}

/// `Nov  1 13:53:31` in local time, the stamp of RFC 3164.
pub(crate) fn syslog_stamp(time_ns: u64, zone: &TimeZone) -> String {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let time = civil(time_ns, zone);
    let month = usize::try_from(time.month() - 1)
        .ok()
        .and_then(|month| MONTHS.get(month))
        .expect("months count from 1 to 12");
    format!(
        "{month} {:>2} {:02}:{:02}:{:02}",
        time.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

/// Formats the current time for Falco's log: `Sat Nov 21 13:53:31 2026` in local time, or
/// `2026-11-21T13:53:31+0000`.
pub fn log_stamp(is_iso_8601: bool) -> String {
    let now = now_ns();
    if is_iso_8601 {
        let time = date_time(now);
        let seconds = time.split('.').next().unwrap_or(&time);
        return format!("{seconds}+0000");
    }
    let zone = local_zone();
    let time = civil(now, &zone);
    let weekday = match time.weekday() {
        Weekday::Monday => "Mon",
        Weekday::Tuesday => "Tue",
        Weekday::Wednesday => "Wed",
        Weekday::Thursday => "Thu",
        Weekday::Friday => "Fri",
        Weekday::Saturday => "Sat",
        Weekday::Sunday => "Sun",
    };
    format!("{weekday} {} {}", syslog_stamp(now, &zone), time.year())
}

/// Returns the system's time zone like the C library: `TZ`, else `/etc/localtime`, else UTC. jiff's
/// own lookup gives the same but reads all zone directories to find the name, which takes
/// milliseconds.
pub(crate) fn local_zone() -> TimeZone {
    const FILE: &str = "/etc/localtime";
    if std::env::var_os("TZ").is_some() {
        return TimeZone::system();
    }
    match std::fs::read(FILE) {
        Ok(rules) => TimeZone::tzif(FILE, &rules).unwrap_or_else(|_broken| TimeZone::system()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => TimeZone::UTC,
        Err(_unreadable) => TimeZone::system(),
    }
}

/// Current time in nanoseconds since the epoch, clamped to 0 before the epoch and to the maximum
/// after the year 2554.
pub(crate) fn now_ns() -> u64 {
    let now = Timestamp::now().as_nanosecond();
    u64::try_from(now.max(0)).unwrap_or(u64::MAX)
}

fn date_time(time_ns: u64) -> String {
    let time = civil(time_ns, &TimeZone::fixed(Offset::UTC));
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}",
        time.year(),
        time.month(),
        time.day(),
        time.hour(),
        time.minute(),
        time.second(),
        time.subsec_nanosecond()
    )
}

fn civil(time_ns: u64, zone: &TimeZone) -> DateTime {
    let timestamp = Timestamp::from_nanosecond(i128::from(time_ns))
        .expect("the largest u64 is in the year 2554, which a Timestamp can hold");
    zone.to_datetime(timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_zone_is_the_one_that_others_find() {
        let other = TimeZone::system();
        for time in [TIME, TIME / 2] {
            assert_eq!(clock(time, &local_zone()), clock(time, &other));
        }
    }

    // 2026-11-21 08:15:42.000000007 UTC.
    const TIME: u64 = 1_795_248_942_000_000_007;

    #[test]
    fn clock_is_in_the_given_zone_and_the_rest_in_utc() {
        let kolkata = TimeZone::fixed(Offset::from_seconds(19_800).unwrap());
        assert_eq!(clock(TIME, &kolkata), "13:45:42.000000007");
        assert_eq!(clock(TIME, &TimeZone::UTC), "08:15:42.000000007");
        assert_eq!(iso_8601(TIME), "2026-11-21T08:15:42.000000007+0000");
        assert_eq!(rfc_3339(TIME), "2026-11-21T08:15:42.000000007Z");
    }

    #[test]
    fn a_syslog_stamp_pads_the_day_with_a_space() {
        assert_eq!(syslog_stamp(TIME, &TimeZone::UTC), "Nov 21 08:15:42");
        assert_eq!(syslog_stamp(0, &TimeZone::UTC), "Jan  1 00:00:00");
    }

    #[test]
    fn extreme_times_print() {
        assert_eq!(rfc_3339(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(rfc_3339(u64::MAX), "2554-07-21T23:34:33.709551615Z");
    }
}
