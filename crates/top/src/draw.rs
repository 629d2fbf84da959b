//! Drawing.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState, Wrap};

use crate::alerts::AlertRow;
use crate::state::{State, Tab};
use crate::tally::{Costs, Tally};

/// Smallest terminal, in columns and rows.
const SMALLEST: (u16, u16) = (60, 12);
const HEADING: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

/// Draws one frame. `status` says what is watched, and what was lost.
pub fn draw(frame: &mut Frame<'_>, tally: &Tally, state: &mut State, status: &str) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = format!("needs {} x {} characters; q ends", SMALLEST.0, SMALLEST.1);
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    let [top, tabs, body, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    let all = &tally.all;
    let line = format!(
        "tollgate top  {status}  alerts: {}  {} events/s",
        tally.alerts.total,
        number(all.events_rate)
    );
    frame.render_widget(Paragraph::new(line).style(HEADING), top);
    frame.render_widget(tab_line(state), tabs);
    match state.tab {
        Tab::Processes => processes(frame, body, tally, state),
        Tab::Calls => calls(frame, body, tally, state),
        Tab::Alerts => alerts(frame, body, tally, state),
    }
    frame.render_widget(key_line(state), keys);
}

fn tab_line(state: &State) -> Paragraph<'static> {
    let tab = |tab: Tab, text: &'static str| {
        let style = match state.tab == tab {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        Span::styled(format!(" {text} "), style)
    };
    Paragraph::new(Line::from(vec![
        tab(Tab::Processes, "1 processes"),
        tab(Tab::Calls, "2 calls"),
        tab(Tab::Alerts, "3 alerts"),
        Span::styled(format!("   by {}", state.sort.word()), DIM),
    ]))
}

fn key_line(state: &State) -> Paragraph<'static> {
    if state.is_typing {
        return Paragraph::new(format!("/{}_   Enter keeps, Esc clears", state.filter));
    }
    let filter = match state.filter.is_empty() {
        true => String::new(),
        false => format!("filter: {}  Esc clears   ", state.filter),
    };
    let keys = "/ filter  Tab next  s sort  arrows select  q quit";
    Paragraph::new(format!("{filter}{keys}")).style(DIM)
}

fn processes(frame: &mut Frame<'_>, area: Rect, tally: &Tally, state: &mut State) {
    let rows = state.processes(tally);
    let selected = state.clamp(rows.len());
    let rows = rows.into_iter().map(|caller| {
        let pid = match caller.pid {
            0 => "-".to_owned(),
            pid => pid.to_string(),
        };
        let mut cells = vec![right(pid), Cell::from(caller.name.clone())];
        cells.push(Cell::from(caller.parent.clone()));
        cells.extend(costs(&caller.costs));
        cells.push(right(caller.alerts.to_string()));
        Row::new(cells)
    });
    let widths = [
        Constraint::Length(8),
        Constraint::Min(14),
        Constraint::Length(14),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(6),
    ];
    let heading = [
        ">PID",
        "PROCESS",
        "PARENT",
        ">EVENTS/s",
        ">COST us/s",
        ">COST ms",
        ">ALERTS",
    ];
    table(frame, area, Table::new(rows, widths), &heading, selected);
}

fn calls(frame: &mut Frame<'_>, area: Rect, tally: &Tally, state: &mut State) {
    let rows = state.calls(tally);
    let selected = state.clamp(rows.len());
    let rows = rows.into_iter().map(|(call, figures)| {
        let mut cells = vec![Cell::from(call)];
        cells.extend(costs(figures));
        cells.push(right(figures.events.to_string()));
        let each = figures.ns as f64 / figures.events.max(1) as f64;
        cells.push(right(number(each)));
        Row::new(cells)
    });
    let widths = [
        Constraint::Min(16),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(8),
    ];
    let heading = [
        "CALL",
        ">EVENTS/s",
        ">COST us/s",
        ">COST ms",
        ">EVENTS",
        ">ns EACH",
    ];
    table(frame, area, Table::new(rows, widths), &heading, selected);
}

fn alerts(frame: &mut Frame<'_>, area: Rect, tally: &Tally, state: &mut State) {
    let all = state.alerts(tally);
    let selected = state.clamp(all.len());
    let [list, detail] =
        Layout::vertical([Constraint::Percentage(35), Constraint::Percentage(65)]).areas(area);
    let rows = all.iter().map(|row| {
        let count = match row.count {
            0 | 1 => String::new(),
            count => format!("x{count}"),
        };
        Row::new(vec![
            Cell::from(row.time.clone()),
            Cell::from(row.priority.clone()).style(colour(&row.priority)),
            Cell::from(row.rule.clone()),
            Cell::from(row.process.clone()),
            right(count),
        ])
    });
    let widths = [
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Min(24),
        Constraint::Length(22),
        Constraint::Length(6),
    ];
    let heading = ["TIME", "PRIORITY", "RULE", "PROCESS", ">COUNT"];
    table(frame, list, Table::new(rows, widths), &heading, selected);
    let chosen = selected.and_then(|row| all.get(row));
    let text = match chosen {
        None => vec![Line::from("no alert yet")],
        // One row is the title, and the message may take two more.
        Some(row) => details(row, detail.height.saturating_sub(3)),
    };
    let block = Block::new().borders(Borders::TOP).title("why");
    frame.render_widget(
        Paragraph::new(text).wrap(Wrap { trim: false }).block(block),
        detail,
    );
}

/// The lines about one alert: message, the parts of the condition that matched, and the process tree from the
/// oldest ancestor down. Where there is little room the tree takes one line.
fn details(row: &AlertRow, height: u16) -> Vec<Line<'static>> {
    let mut lines = vec![Line::from(row.message.clone())];
    lines.extend(row.why.iter().map(|line| Line::from(line.clone())));
    let needed = lines.len() + row.tree.len();
    if needed > usize::from(height) {
        lines.insert(1, Line::styled(format!("by {}", row.tree.join(" < ")), DIM));
        return lines;
    }
    let tree = row.tree.iter().rev().enumerate();
    lines.extend(
        tree.map(|(depth, process)| Line::styled(format!("{}{process}", "  ".repeat(depth)), DIM)),
    );
    lines
}

/// Draws a table. A heading that begins with `>` is aligned right, as its numbers are.
fn table(
    frame: &mut Frame<'_>,
    area: Rect,
    table: Table<'_>,
    heading: &[&'static str],
    selected: Option<usize>,
) {
    let cell = |text: &'static str| match text.strip_prefix('>') {
        Some(text) => right(text.to_owned()),
        None => Cell::from(text),
    };
    let heading = Row::new(heading.iter().map(|text| cell(text))).style(HEADING);
    let table = table
        .header(heading)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut choice = TableState::new().with_selected(selected);
    frame.render_stateful_widget(table, area, &mut choice);
}

fn costs(costs: &Costs) -> [Cell<'static>; 3] {
    [
        right(number(costs.events_rate)),
        right(number(costs.ns_rate / 1e3)),
        right(format!("{:.1}", costs.ns as f64 / 1e6)),
    ]
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

fn number(value: f64) -> String {
    match value {
        value if value >= 100_000.0 => format!("{:.0}k", value / 1e3),
        value if value >= 10.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

fn colour(priority: &str) -> Style {
    match priority {
        "Emergency" | "Alert" | "Critical" | "Error" => Style::new().fg(Color::Red),
        "Warning" => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::state::Key;
    use crate::tally::tests::seen;

    fn tally() -> Tally {
        let start = Instant::now();
        let mut tally = Tally::new(start);
        for _ in 0..50 {
            tally.count(seen(4242, "openat", 2000), start, || {
                ("cat".to_owned(), "bash".to_owned())
            });
        }
        tally.count(seen(4243, "connect", 100), start, || {
            ("curl".to_owned(), "sh".to_owned())
        });
        tally.alerts.add(AlertRow {
            priority: "Warning".to_owned(),
            rule: "Read sensitive file untrusted".to_owned(),
            message: "a file was read \u{1b}[31m".to_owned(),
            process: "4242 cat".to_owned(),
            time: "12:00:00".to_owned(),
            tree: vec![
                "4242 cat".to_owned(),
                "4000 bash".to_owned(),
                "1 init".to_owned(),
            ],
            why: vec!["yes   open_read   evt.type: openat".to_owned()],
            ..AlertRow::default()
        });
        tally.alert_of(4242);
        tally.tick(start + Duration::from_secs(1));
        tally
    }

    fn screen(width: u16, height: u16, state: &mut State) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let tally = tally();
        let status = "all processes (eBPF)  0 lost";
        terminal
            .draw(|frame| draw(frame, &tally, state, status))
            .unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..height)
            .map(row)
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    #[test]
    fn processes_fit_80_columns_with_the_most_expensive_first() {
        let lines = screen(80, 24, &mut State::default());
        let title = "tollgate top  all processes (eBPF)  0 lost  alerts: 1  51 events/s";
        assert_eq!(lines[0], title);
        assert_eq!(
            lines[2],
            "     PID PROCESS             PARENT          EVENTS/s COST us/s   COST ms ALERTS"
        );
        let words: Vec<_> = lines[3].split_whitespace().collect();
        assert_eq!(words, ["4242", "cat", "bash", "50", "100", "0.1", "1"]);
        assert!(lines[4].contains("curl"), "{lines:?}");
        assert!(lines[23].contains("q quit"), "{lines:?}");
    }

    #[test]
    fn an_alert_shows_its_process_tree_and_why() {
        let mut state = State::default();
        state.press(Key::Char('3'));
        let lines = screen(80, 24, &mut state);
        let text = lines.join("\n");
        assert!(!text.contains('\u{1b}'), "{text}");
        for part in [
            "Read sensitive file untrusted",
            "a file was read \\u{1b}[31m",
            "1 init\n  4000 bash\n    4242 cat",
            "yes   open_read   evt.type: openat",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }

    #[test]
    fn calls_and_filter_are_drawn() {
        let mut state = State::default();
        for key in "2/conn".chars() {
            state.press(Key::Char(key));
        }
        let lines = screen(120, 30, &mut state);
        assert!(lines[3].starts_with("connect"), "{lines:?}");
        assert_eq!(lines[4], "", "openat is hidden");
        assert!(lines[29].starts_with("/conn_"), "{lines:?}");
    }

    #[test]
    fn a_small_terminal_is_told_so() {
        let lines = screen(40, 8, &mut State::default());
        assert!(lines[0].contains("needs 60 x 12 characters"), "{lines:?}");
    }
}
