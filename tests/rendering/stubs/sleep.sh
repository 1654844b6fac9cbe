[[ $1 != 5 ]] || exec /usr/bin/sleep 5
