case $2 in node2) echo "10.0.0.2 STREAM node2";; esac
