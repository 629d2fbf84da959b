# A node in namespaces of its own: containerd, and folders and addresses for a kubelet. `images.sh` is read before.

# What containerd, the kubelet and the agents write is the test's. Their folders are where they are on every node.
mkdir -p var/lib var/log var/tmp run opt etc etc.work kernel
ln -s /run var/run
rm -rf run/* && mkdir -p run/containerd var/lib/kubelet var/lib/manifests
mount --bind var /var
mount --bind run /run
mount --bind opt /opt
mount -t overlay -o "lowerdir=/etc,upperdir=$PWD/etc,workdir=$PWD/etc.work" overlay /etc
# The kubelet sets these for the whole machine: it gets files in their place, each with the value that it wants.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    name=${setting%=*}
    echo "${setting#*=}" > "kernel/$(basename "$name")"
    mount --bind "kernel/$(basename "$name")" "/proc/sys/$name"
done

# No route leads out. The node has an address, and so has the Service of the API server, in place of kube-proxy.
ip link set lo up
ip address add "$NODE_ADDRESS/32" dev lo
ip address add "$SERVICE_ADDRESS/32" dev lo
echo 1 > /proc/sys/net/ipv4/ip_forward

mkdir -p cni
cat > cni/10-pods.conflist <<END
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "subnet": "10.244.0.0/24",
   "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
cat > config.toml <<END
version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/pod:1"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "$PWD/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
# Another name of the same runtime.
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.other]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.tollgate]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.tollgate.options]
  BinaryName = "$PWD/tollgate-runtime"
# As the how-to says: no container is created while no agent runs.
[plugins."io.containerd.nri.v1.nri".default_validator]
  enable = true
  required_plugins = ["tollgate"]
  tolerate_missing_plugins_annotation = "tollgate.dev/tolerate-missing"
END
ln -s "$TOLLGATE_PROGRAM" tollgate-runtime
mkdir -p /etc/tollgate /var/log/tollgate
containerd --config config.toml > containerd.log 2>&1 &
busybox_image
tollgate_image
import pod.tar tollgate.tar
touch ready
wait
