use super::*;

fn below(path: &Path) -> Target {
    Target {
        path: path.as_os_str().as_bytes().to_vec(),
        itself: Sensitive::default(),
        below: Sensitive {
            reads: true,
            writes: false,
        },
    }
}

/// As /lib and /usr/lib: what one walk has found serves the other, and both names are known.
#[test]
fn folders_below_a_link_are_watched_by_both_names() {
    let place = tempfile::tempdir().unwrap();
    let (real, link) = (place.path().join("usr/lib"), place.path().join("lib"));
    std::fs::create_dir_all(real.join("one/two")).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    for targets in [[&real, &link], [&link, &real]] {
        let mut watches = Watches::new(targets.map(|path| below(path)).to_vec()).unwrap();
        watches.arm();
        for inside in ["x", "one/x", "one/two/x"] {
            let keys = |folder: &Path| {
                let path = folder.join(inside);
                watches.keys(path.as_os_str().as_bytes())
            };
            assert_eq!(keys(&real).len(), 1, "{inside}");
            assert_eq!(keys(&real), keys(&link), "{inside}");
        }
        assert_eq!(watches.refused, 0);
    }
}

#[test]
fn a_folder_that_is_put_in_the_place_of_another_is_watched() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("folder");
    std::fs::create_dir_all(folder.join("old")).unwrap();
    let mut watches = Watches::new(vec![below(&folder)]).unwrap();
    watches.arm();
    let before = watches.len();
    std::fs::create_dir_all(place.path().join("next/new")).unwrap();
    std::fs::rename(&folder, place.path().join("gone")).unwrap();
    std::fs::rename(place.path().join("next"), &folder).unwrap();
    let parent = watches.by_path[place.path().as_os_str().as_bytes()][0];
    watches.appeared(parent, b"folder", true);
    let inside = folder.join("new/x");
    assert_eq!(watches.keys(inside.as_os_str().as_bytes()).len(), 1);
    assert_eq!(watches.len(), before + 2);
}
