case "$*" in
    "-4 -o route get 10.0.0.2") echo "10.0.0.2 dev eth1 src 10.0.0.1 uid 0" ;;
    "-4 -o route get 10.0.0.1") echo "10.0.0.1 dev eth1 src 10.0.0.$(( SLURM_NODEID + 1 )) uid 0" ;;
    "-4 -o addr show up scope global") echo "3: eth1 inet 10.0.0.1/24 scope global eth1" ;;
    "-4 -o addr show to "*) echo "3: eth1 inet $6/24 scope global eth1" ;;
    *) echo "ip: not understood: $*" >&2; exit 1 ;;
esac
