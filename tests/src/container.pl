# Makes a container, or a network alone, for the shell that starts it. One program does all of it: where the tests run
# containers by the thousand, forty programs for each would take most of the time.
#
# Arguments: `container MOUNT UMOUNT2 PIVOT_ROOT SETHOSTNAME LOWER SCRATCH PROGRAM` or `network`, then addresses with
# commas, and the address that never answers. Words in capitals that name calls are their numbers.
use strict;
use warnings;

my $kind = shift @ARGV;
my ($BIND, $DETACH, $RECURSIVE, $PRIVATE) = (4096, 2, 16384, 1 << 18);
my ($mount, $umount2, $pivot_root, $sethostname, $lower, $scratch, $program);
($mount, $umount2, $pivot_root, $sethostname, $lower, $scratch, $program) = splice @ARGV, 0, 7 if $kind eq 'container';
my ($addresses, $blackhole) = splice @ARGV, 0, 2;
# Perl passes words to a call as text, and these are numbers.
$_ += 0 for grep { defined } $mount, $umount2, $pivot_root, $sethostname;

sub attach {
    my ($source, $target, $type, $flags, $options) = @_;
    syscall($mount, $source, $target, $type, $flags, $options) == 0
        or die "cannot mount $source at $target: $!\n";
}

sub folder {
    my ($path) = @_;
    mkdir $path or -d $path or die "cannot make $path: $!\n";
}

# Addresses are on the loopback interface, which needs no driver. Packets to the last one come back there, belong to nobody
# and are dropped without an answer.
sub connect_network {
    open my $ip, '|-', 'ip', '-batch', '-' or die "cannot start ip: $!\n";
    print $ip "link set lo up\n";
    print $ip "address add $_/32 dev lo\n" for split /,/, $addresses;
    print $ip "route add $blackhole/32 dev lo\n";
    close $ip or die "ip has failed\n";
    open my $lowest, '>', '/proc/sys/net/ipv4/ip_unprivileged_port_start' or die "cannot open it: $!\n";
    print $lowest "0\n";
    close $lowest or die "cannot write it: $!\n";
}

if ($kind eq 'network') {
    connect_network();
    exit;
}

attach('none', '/', 'none', $RECURSIVE | $PRIVATE, '');
my $stage = "$scratch/stage";
folder($stage);
attach('tmpfs', $stage, 'tmpfs', 0, 'mode=755');
folder("$stage/$_") for qw(upper work root);
attach('overlay', "$stage/root", 'overlay', 0, "lowerdir=$lower,upperdir=$stage/upper,workdir=$stage/work");
chdir "$stage/root" or die "cannot enter $stage/root: $!\n";
my $path = '.';
for my $part (grep { length } split m{/}, $scratch) {
    $path .= "/$part";
    folder($path);
}
attach($scratch, "./$scratch", 'none', $BIND, '');
attach($program, 'usr/local/bin/tollgate', 'none', $BIND, '');
attach('proc', 'proc', 'proc', 0, '');
attach('tmpfs', 'dev', 'tmpfs', 0, 'mode=755');
for my $device (qw(null zero full random urandom tty)) {
    open my $file, '>', "dev/$device" or die "cannot make dev/$device: $!\n";
    attach("/dev/$device", "dev/$device", 'none', $BIND, '');
}
folder("dev/$_") for qw(pts shm);
attach('devpts', 'dev/pts', 'devpts', 0, 'newinstance,ptmxmode=0666');
attach('tmpfs', 'dev/shm', 'tmpfs', 0, 'mode=1777');
my $name = 'container';
syscall($sethostname, $name, length $name) == 0 or die "cannot set the name of the host: $!\n";
connect_network();

# The shell gets the new root, too: it had the old one.
my ($new, $old) = ('.', 'old');
syscall($pivot_root, $new, $old) == 0 or die "cannot change the root: $!\n";
$old = '/old';
syscall($umount2, $old, $DETACH) == 0 or die "cannot unmount $old: $!\n";
