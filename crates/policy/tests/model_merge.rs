//! Models of several runs become one, in any order.

use policy::Model;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Reports of replicas and nodes arrive in any order, and some twice.
    #[test]
    fn any_order_of_merges_gives_the_same_model(
        files in prop::collection::vec((0..4_usize, 0..3_usize, 0..60_usize), 0..120),
        order in prop::collection::vec(0..8_usize, 8..24),
    ) {
        let mut runs = vec![Model::default(); 8];
        for (at, (kind, folder, number)) in files.iter().enumerate() {
            let run = &mut runs[at % 8];
            let folder = ["/srv/a", "/srv/b", ""][*folder];
            // The last one is generalised to all of its folder.
            let file = match number {
                59 => format!("{folder}/0123456789abcdef"),
                number => format!("{folder}/file-{number}"),
            };
            match kind {
                0 => run.note_read(&file),
                1 => run.note_write(&file),
                2 => run.note_program(&file),
                _ => run.note_read(["/etc/shadow", "/etc/gshadow"][*number % 2]),
            }
        }
        let merged = |order: &mut dyn Iterator<Item = usize>| {
            let mut all = Model::default();
            order.for_each(|at| all.merge(runs[at].clone()));
            all
        };
        let expected = merged(&mut (0..8));
        prop_assert_eq!(&merged(&mut (0..8).rev()), &expected);
        prop_assert_eq!(&merged(&mut order.into_iter().chain(0..8)), &expected);
        let mut halves = merged(&mut (4..8));
        halves.merge(merged(&mut (0..4)));
        prop_assert_eq!(halves, expected);
    }
}
