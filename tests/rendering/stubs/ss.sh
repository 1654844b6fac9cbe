echo "$*" >>"$RECORD/ss"
