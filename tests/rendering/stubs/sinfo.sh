echo "$*" >>"$RECORD/sinfo"
printf "main*|%s|alloc|64|500000|(null)|gpu:4\n" ${SINFO_NODES:-"${NODES[@]}"}
